"""Decays between the tokens of a chunk, for families."""

from ..metal.decay import decay_between

__all__ = ["decay_between"]
