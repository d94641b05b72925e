"""Stores without a model: listings, proofs, explanations, bundles, and the handle on them."""
