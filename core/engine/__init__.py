"""The engine thread, which owns a model's arrays."""
