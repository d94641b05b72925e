"""The Qwen3 family for neve."""
