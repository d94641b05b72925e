"""Places in a model at which hidden states may be read. Plain values, without MLX."""

from __future__ import annotations

import attrs


@attrs.frozen
class Tap:
    """A place in a model at which hidden states may be read.

    Attributes:
        layer: Index of the layer whose output is read: the residual stream behind the layer.
            None for the hidden states that enter the head, after the model's last norm.
    """

    layer: int | None


FINAL = Tap(None)
"""The tap of the hidden states that enter the head."""
