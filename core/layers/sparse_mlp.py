"""A router and its experts, in place of an MLP."""

from __future__ import annotations

from typing import ClassVar

import mlx.core as mx
import mlx.nn as nn

from .moe import Experts, Routing
from .stream import Normed

__all__ = ["SparseMLP"]


class SparseMLP(nn.Module):
    """Experts, and a router that chooses a few of them for each token.

    The experts' weights are stacked. `weights.stacked("experts")` stacks the weights of a
    checkpoint with one tensor for each expert.

    Attributes:
        BIAS: Name of the bias that is added to the scores for the choice alone.
    """

    BIAS: ClassVar[str] = "expert_bias"

    def __init__(
        self,
        dims: int,
        hidden_dims: int,
        num_experts: int,
        routing: Routing,
        *,
        bias: bool = False,
    ) -> None:
        """Create the layer.

        Args:
            dims: Width `D` of the stream.
            hidden_dims: Width of an expert.
            num_experts: Number of experts.
            routing: Choice and weights of the experts.
            bias: Whether a bias enters the choice.
        """
        super().__init__()
        self._routing = routing
        self.gate = nn.Linear(dims, num_experts, bias=False)
        self.experts = Experts(num_experts, dims, hidden_dims)
        if bias:
            self[self.BIAS] = mx.zeros((num_experts,))

    def delta(self, x: Normed) -> mx.array:
        """Return the layer's addition to the stream, for `x [T, D]`."""
        rows = x.computed()
        chosen, weights = self._routing(self.gate(rows), self.get(self.BIAS))
        return self.experts(rows, chosen, weights)
