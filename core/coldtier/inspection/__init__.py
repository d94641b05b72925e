"""Stores without a model: listings, verification, explanations, bundles, and the handle."""
