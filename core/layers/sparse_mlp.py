"""A router and its experts, in the place of an MLP."""

from __future__ import annotations

from typing import ClassVar

import mlx.core as mx
import mlx.nn as nn

from .moe import Experts, Routing
from .stream import Normed

__all__ = ["SparseMLP"]


class SparseMLP(nn.Module):
    """Experts of which a router picks a few for each token.

    The experts' weights are stacked: `weights.stacked("experts")` makes that of a checkpoint
    that has them one by one.

    Attributes:
        BIAS: Name of what is added to the scores of the experts for their choice alone.
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
        """Make the layer.

        Args:
            dims: Width `D` of the stream.
            hidden_dims: Width of an expert.
            num_experts: Experts.
            routing: How they are chosen and weighed.
            bias: Whether a bias enters the choice.
        """
        super().__init__()
        self._routing = routing
        self.gate = nn.Linear(dims, num_experts, bias=False)
        self.experts = Experts(num_experts, dims, hidden_dims)
        if bias:
            self[self.BIAS] = mx.zeros((num_experts,))

    def delta(self, x: Normed) -> mx.array:
        """Return what is added to the stream, for `x [T, D]`."""
        rows = x.computed()
        chosen, weights = self._routing(self.gate(rows), self.get(self.BIAS))
        return self.experts(rows, chosen, weights)
