"""The choice of experts for each token, and the weights of the chosen experts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import attrs
import mlx.core as mx

from ..metal.runtime.fusion import fused


@attrs.frozen
class Routing:
    """From a router's logits to experts and weights.

    Attributes:
        num_chosen: Experts that compute a token.
        scores: Function from logits to scores, over all experts.
        renormalise: Whether the weights of the chosen experts are normalised to sum to one.
        epsilon: Added to the sum of the weights before the division.
        scale: Factor on the weights.
        num_groups: Groups of consecutive experts; several groups have two experts or more.
        num_chosen_groups: Groups from which a token's experts are chosen.
    """

    num_chosen: int
    scores: Literal["softmax", "sigmoid"] = "softmax"
    renormalise: bool = True
    epsilon: float = 1e-20
    scale: float = 1.0
    num_groups: int = 1
    num_chosen_groups: int = 1

    def __call__(
        self, logits: mx.array, bias: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """Choose the experts of each token, with scores in float32.

        Args:
            logits: `[T, E]`.
            bias: `[E]`, added to the scores for the choice alone, not for the weights.

        Returns:
            The chosen experts `[T, k]`, in no order, and their weights `[T, k]`, float32.
        """
        logits = logits.astype(mx.float32)
        scores = mx.softmax(logits, axis=-1) if self.scores == "softmax" else mx.sigmoid(logits)
        ranking = self._ranking(scores, bias)
        chosen = mx.argpartition(ranking, kth=self.num_chosen - 1, axis=-1)
        chosen = chosen[:, : self.num_chosen]
        weights = mx.take_along_axis(scores, chosen, axis=-1)
        if self.renormalise:
            return chosen, _normalised(self.epsilon, self.scale)(weights)
        return chosen, weights if self.scale == 1 else weights * self.scale

    def _ranking(self, scores: mx.array, bias: mx.array | None) -> mx.array:
        """Return sort keys `[T, E]`, the least for the best experts."""
        if self.num_chosen_groups < self.num_groups:
            return -self._within_groups(scores if bias is None else scores + bias)
        return -scores if bias is None else _against(scores, bias)

    def _within_groups(self, scores: mx.array) -> mx.array:
        """Return scores `[T, E]` with zeros for the experts of the groups not chosen.

        A group's score is the sum of its two best experts' scores. Source: DeepSeek-V3's
        choice, as in Nemotron-H's reference implementation, zeros included.
        """
        groups = scores.reshape(scores.shape[0], self.num_groups, -1)
        best = mx.topk(groups, 2, axis=-1).sum(axis=-1)
        num_left_out = self.num_groups - self.num_chosen_groups
        left_out = mx.argpartition(best, kth=num_left_out - 1, axis=-1)[:, :num_left_out]
        zero = mx.array(0.0, scores.dtype)
        return mx.put_along_axis(groups, left_out[..., None], zero, axis=1).flatten(1)


@fused
def _against(scores: mx.array, bias: mx.array) -> mx.array:
    return -(scores + bias)


@functools.cache
def _normalised(epsilon: float, scale: float) -> Callable[[mx.array], mx.array]:
    def normalised(weights: mx.array) -> mx.array:
        return weights / (weights.sum(axis=-1, keepdims=True) + epsilon) * scale

    return fused(normalised)
