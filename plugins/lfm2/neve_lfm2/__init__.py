"""The LFM2 family for neve."""
