"""Checkpoints: from a path or a hub id to named weights."""
