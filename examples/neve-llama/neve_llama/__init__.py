"""The Llama family for neve."""
