"""The Gemma 4 family for neve."""
