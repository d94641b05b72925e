"""Layers that keep a state: gated delta, Mamba-2, short convolutions."""
