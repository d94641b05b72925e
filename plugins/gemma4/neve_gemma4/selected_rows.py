"""A context for layers that compute only some tokens of a step."""

from __future__ import annotations

import attrs
import mlx.core as mx

from neve.contract.forward import ForwardContext, RopeSpec, ScanStep, Scoring
from neve.contract.heads import Projected


@attrs.frozen(eq=False)
class SelectedRows:
    """A context for layers that compute selected tokens and keep no cache.

    The inner context still attends a query of every token, with zeros for the others. The
    savings are in projections, MLPs and experts.

    Attributes:
        inner: The step's context.
        rows: Indices `[R]` of the tokens.
        num_tokens: Tokens of the step, T.
    """

    inner: ForwardContext
    rows: mx.array
    num_tokens: int

    def attend(
        self,
        layer: int,
        q: mx.array,
        k: mx.array | None,
        v: mx.array | None,
        scoring: Scoring,
    ) -> mx.array:
        """Attend `q [R, Hq, D]` to the keys of the layer's anchor, `[R, Hq, Dv]`.

        Raises:
            CacheMisuseError: `k` or `v` is given, or the layer has no anchor.
        """
        spread = self._spread(q)
        return self.inner.attend(layer, spread, k, v, scoring)[self.rows]

    def attend_projected(
        self,
        layer: int,
        projected: Projected,
        scoring: Scoring,
    ) -> mx.array:
        """Make heads of queries, `[R, W]`, and attend to the anchor's keys.

        Raises:
            CacheMisuseError: Keys are projected too, or the layer has no anchor.
        """
        spread = attrs.evolve(projected, parts=tuple(map(self._spread, projected.parts)))
        out = self.inner.attend_projected(layer, spread, scoring)
        return out[self.rows]

    def scan(self, layer: int, inputs: tuple[mx.array, ...], step: ScanStep) -> mx.array:
        """Refuse: a recurrence needs every token.

        Raises:
            ValueError: Always.
        """
        raise ValueError(f"layer {layer} cannot scan selected tokens")

    def rope(self, x: mx.array, spec: RopeSpec) -> mx.array:
        """Rotate `x [R, H, D]` at the tokens' positions."""
        return self.inner.rope(self._spread(x), spec)[self.rows]

    def _spread(self, x: mx.array) -> mx.array:
        spread = mx.zeros((self.num_tokens, *x.shape[1:]), x.dtype)
        spread[self.rows] = x
        return spread
