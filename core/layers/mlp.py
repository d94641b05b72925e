"""Feed-forward blocks."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ..metal.fusion import fused
from .joint import JointModule


@fused
def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """Return `silu(gate) * up`."""
    return gate * mx.sigmoid(gate) * up


class GatedMLP(JointModule):
    """`down(silu(gate(x)) * up(x))`, with the checkpoint's parameter names.

    Source: Shazeer, "GLU Variants Improve Transformer" (SwiGLU).
    """

    JOINT = ("gate_proj", "up_proj")

    def __init__(self, dims: int, hidden_dims: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dims, hidden_dims, bias=bias)
        self.up_proj = nn.Linear(dims, hidden_dims, bias=bias)
        self.down_proj = nn.Linear(hidden_dims, dims, bias=bias)

    def __call__(self, x: mx.array) -> mx.array:
        """Return `[T, dims]` for `x [T, dims]`."""
        gate, up = self.project(x)
        return self.down_proj(swiglu(gate, up))
