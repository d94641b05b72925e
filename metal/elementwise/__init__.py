"""Norms, activations and residuals."""
