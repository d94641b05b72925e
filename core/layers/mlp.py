"""Feed-forward blocks."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ..metal.elementwise.activations import Activation, gated_activation, swiglu
from ..metal.linear.layout import gated_projection
from ..metal.runtime import launch
from ..metal.runtime.fusion import fused
from .joint import JointModule
from .stream import Delta, Input, Normed


@fused
def geglu(gate: mx.array, up: mx.array) -> mx.array:
    """Return `gelu(gate) * up` with GELU's tanh approximation.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units".
    """
    return nn.gelu_approx(gate) * up


def gated(layers: JointModule, x: Input, activation: Activation = "silu") -> mx.array:
    """Return `activation(gate(x)) * up(x)` for a module that joins the two projections.

    Args:
        layers: The module; its `JOINT` names the gate first, then the up projection.
        x: `[T, dims]`.
        activation: Activation of the gate.
    """
    joined = layers.get("joined")
    if joined is not None:
        rows, norm = (x.x, x.norm) if isinstance(x, Normed) else (x, None)
        out = gated_projection(joined, rows, activation, norm)
        if out is not None:
            return out
    parts = layers.project_parts(x)
    if len(parts) == 1:
        return gated_activation(parts[0], activation)
    gate, up = parts
    return (swiglu if activation == "silu" else geglu)(gate, up)


class GatedMLP(JointModule):
    """`down(activation(gate(x)) * up(x))`, with the checkpoint's parameter names.

    Source: Shazeer, "GLU Variants Improve Transformer" (SwiGLU, GEGLU).
    """

    JOINT = ("gate_proj", "up_proj")

    def __init__(
        self,
        dims: int,
        hidden_dims: int,
        *,
        bias: bool = False,
        activation: Activation = "silu",
    ) -> None:
        super().__init__()
        self._activation: Activation = activation
        self.gate_proj = nn.Linear(dims, hidden_dims, bias=bias)
        self.up_proj = nn.Linear(dims, hidden_dims, bias=bias)
        self.down_proj = nn.Linear(hidden_dims, dims, bias=bias)

    def join(self) -> None:
        """Join gate and up projection, unless GELU runs without kernels."""
        # on a CPU, too, MLX's GELU is one operation as long as its rows are contiguous
        if self._activation == "silu" or launch.backend() is not None:
            super().join()

    def __call__(self, x: Input) -> mx.array:
        """Return `[T, dims]` for `x [T, dims]`."""
        return self.down_proj(gated(self, x, self._activation))

    def delta(self, x: Input) -> Delta:
        """Return the MLP's addition to the stream, for `x [T, dims]`."""
        return Delta(self.down_proj, gated(self, x, self._activation))
