"""Heads, pages and attention: kernels and their references."""
