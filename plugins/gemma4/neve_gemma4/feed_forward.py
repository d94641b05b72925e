"""The router of the experts beside Gemma 4's MLP."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from neve.layers.moe import Routing

from .config import ExpertsConfig


class Router(nn.Module):
    """Chooses experts by softmax scores of the normed and scaled input.

    The weights of the chosen experts sum to one, then each is scaled by its expert's factor.

    Attributes:
        scale: `[dims]`, a factor on the normed input, beside one over the root of its width.
        per_expert_scale: `[E]`, a factor on the weights.
    """

    def __init__(self, dims: int, config: ExpertsConfig, *, eps: float) -> None:
        super().__init__()
        self.proj = nn.Linear(dims, config.num_experts, bias=False)
        self.scale = mx.ones((dims,))
        self.per_expert_scale = mx.ones((config.num_experts,))
        self._routing = Routing(config.num_chosen)
        self._eps = eps

    def __call__(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Return the experts `[T, k]` of `x [T, dims]` and their weights, float32."""
        scale = self.scale.astype(mx.float32) * x.shape[-1] ** -0.5
        normed = mx.fast.rms_norm(x, scale, self._eps).astype(x.dtype)
        chosen, weights = self._routing(self.proj(normed))
        return chosen, weights * self.per_expert_scale[chosen].astype(mx.float32)
