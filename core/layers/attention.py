"""Attention of a decoder layer: projections, attention over the cache, output projection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import mlx.core as mx
import mlx.nn as nn

from ..contract.forward import ForwardContext, RopeSpec, Scoring
from .heads import HeadShape, Projected
from .joint import JointModule
from .norms import Norm
from .stream import Delta, Normed

__all__ = ["Attention"]


class Attention(JointModule):
    """Grouped-query attention over the layer's cache.

    Attributes:
        JOINT: Names of the query, key and value projections in checkpoints. Further layers
            with the same input may follow; a subclass creates these layers.
        OUTPUT: Name of the output projection.
        Q_NORM: Name of the norm of queries.
        K_NORM: Name of the norm of keys.
    """

    o_proj: nn.Linear

    JOINT: ClassVar[Sequence[str]] = ("q_proj", "k_proj", "v_proj")
    OUTPUT: ClassVar[str] = "o_proj"
    Q_NORM: ClassVar[str] = "q_norm"
    K_NORM: ClassVar[str] = "k_norm"

    def __init__(
        self,
        dims: int,
        heads: HeadShape,
        layer: int,
        *,
        rope: RopeSpec | None,
        bias: bool = False,
        q_norm: Norm | None = None,
        k_norm: Norm | None = None,
        scoring: Scoring | None = None,
    ) -> None:
        """Create the layer.

        Args:
            dims: Width `D` of the stream.
            heads: Heads in a row of projections.
            layer: Index of the layer.
            rope: Rotation of queries and keys; None for none.
            bias: Whether the four projections have biases.
            q_norm: Norm of each query; None for none.
            k_norm: Norm of each key; None for none.
            scoring: How scores are made; None means the scale `head_dim ** -0.5` alone.
        """
        super().__init__()
        self.layer, self.heads, self.rope = layer, heads, rope
        self.scoring = scoring or Scoring(heads.head_dim**-0.5)
        widths = (
            heads.num_heads * heads.query_stride,
            heads.kv_heads * heads.head_dim,
            heads.kv_heads * heads.value_dim,
        )
        for name, width in zip(self.JOINT[:3], widths, strict=True):
            self[name] = nn.Linear(dims, width, bias=bias)
        self[self.OUTPUT] = nn.Linear(heads.num_heads * heads.value_dim, dims, bias=bias)
        for name, norm in ((self.Q_NORM, q_norm), (self.K_NORM, k_norm)):
            if norm is not None:
                self[name] = norm

    def __call__(self, x: Normed, context: ForwardContext) -> Delta:
        """Return the layer's addition to the stream, for `x [T, D]`."""
        parts = self.project_parts(x)
        projected = Projected(
            parts[:3],
            self.heads,
            q_norm=self.get(self.Q_NORM),
            k_norm=self.get(self.K_NORM),
            rope=self.rope,
        )
        out = context.attend_projected(self.layer, projected, self.scoring)
        return Delta(self[self.OUTPUT], self.gated(out, parts))

    def gated(self, heads: mx.array, parts: Sequence[mx.array]) -> mx.array:
        """Return the input of the output projection, `[T, Hq, Dv]` or `[T, Hq * Dv]`.

        Families with gates override this method, which returns the heads unchanged.

        Args:
            heads: `[T, Hq, Dv]`.
            parts: Projections from `project_parts`.
        """
        return heads
