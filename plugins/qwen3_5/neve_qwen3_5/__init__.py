"""The Qwen3.5 family for neve."""
