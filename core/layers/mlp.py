"""Feed-forward blocks."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn


class GatedMLP(nn.Module):
    """`down(silu(gate(x)) * up(x))`, with the checkpoint's parameter names.

    Source: Shazeer, "GLU Variants Improve Transformer" (SwiGLU).
    """

    def __init__(self, dims: int, hidden_dims: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dims, hidden_dims, bias=bias)
        self.up_proj = nn.Linear(dims, hidden_dims, bias=bias)
        self.down_proj = nn.Linear(hidden_dims, dims, bias=bias)

    def __call__(self, x: mx.array) -> mx.array:
        """Return `[T, dims]` for `x [T, dims]`."""
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))
