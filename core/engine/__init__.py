"""The loop that owns a model's arrays."""
