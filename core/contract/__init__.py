"""What the core and the families say to one another."""
