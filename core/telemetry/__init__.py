"""What neve tells about itself: a line a turn, a trace, metrics."""
