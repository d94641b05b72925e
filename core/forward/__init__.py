"""The two implementations of the forward context."""
