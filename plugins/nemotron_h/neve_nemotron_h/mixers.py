"""The four types of layers; each is called with its normed input.

Parameters are named as in the checkpoint, except the router's (see `weights`). All shapes are
token-major: `T` tokens of a step, over all sequences.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, State
from neve.layers.attention import Attention
from neve.layers.fusion import fused
from neve.layers.gated_norm import GatedGroupNorm
from neve.layers.heads import HeadShape
from neve.layers.mamba2 import Rates, mamba2_mixed
from neve.layers.moe import Experts, Routing
from neve.layers.short_conv import ShortConv
from neve.layers.stream import Delta, Normed, project

from .config import AttentionConfig, ExpertsConfig, MambaConfig


class Mamba(nn.Module):
    """A Mamba-2 layer: a short convolution, then the recurrence, gated and normed.

    The state consists of the convolution's last inputs `[K - 1, C]` and of matrices
    `[H, P, n]`, both float32.
    """

    def __init__(self, dims: int, config: MambaConfig, layer: int, *, eps: float) -> None:
        super().__init__()
        inner, heads = config.inner_dim, config.num_heads
        self.layer = layer
        self.config = config
        self.in_proj = nn.Linear(dims, inner + config.conv_dim + heads, bias=config.bias)
        self.conv1d = ShortConv(
            config.conv_dim, config.kernel, bias=config.conv_bias, activation=nn.silu
        )
        self.dt_bias = mx.zeros((heads,))
        self.A_log = mx.zeros((heads,))
        self.D = mx.zeros((heads,))
        self.norm = GatedGroupNorm(inner, config.num_groups, eps=eps)
        self.out_proj = nn.Linear(inner, dims, bias=config.bias)

    def __call__(self, x: Normed, context: ForwardContext) -> Delta:
        """Return the layer's addition to the stream, for `x [T, hidden]`."""
        rows = project(self.in_proj, x)
        out = context.scan(self.layer, (rows,), self._step)
        return Delta(self.out_proj, self.norm(out, rows))

    def _step(self, inputs: tuple[mx.array, ...], state: State) -> tuple[mx.array, State]:
        # a row has the gate, the convolution's input, and the inputs of time steps
        (rows,), (conv, matrices), config = inputs, state, self.config
        mixed, conv = self.conv1d(rows, conv, start=config.inner_dim)
        rates = Rates(self.A_log, self.dt_bias, self.D, config.limit)
        steps = config.inner_dim + config.conv_dim
        out, matrices = mamba2_mixed(mixed, rows, steps, rates, matrices, chunk=config.chunk)
        return out.flatten(-2), (conv, matrices)


def attention(dims: int, config: AttentionConfig, layer: int) -> Attention:
    """Return causal attention without positions."""
    heads = HeadShape(config.num_heads, config.num_kv_heads, config.head_dim)
    return Attention(dims, heads, layer, rope=None, bias=config.bias)


@fused
def relu2(x: mx.array) -> mx.array:
    """Return the square of the positive part."""
    return mx.square(mx.maximum(x, 0))


class MLP(nn.Module):
    """`down(relu(up(x))²)`."""

    def __init__(self, dims: int, hidden_dims: int, *, bias: bool) -> None:
        super().__init__()
        self.up_proj = nn.Linear(dims, hidden_dims, bias=bias)
        self.down_proj = nn.Linear(hidden_dims, dims, bias=bias)

    def __call__(self, x: mx.array) -> mx.array:
        """Return `[T, dims]` for `x [T, dims]`."""
        return self.down_proj(relu2(self.up_proj(x)))

    def delta(self, x: Normed) -> Delta:
        """Return the MLP's addition to the stream, for `x [T, dims]`."""
        return Delta(self.down_proj, relu2(project(self.up_proj, x)))


class Router(nn.Module):
    """Chooses experts by biased sigmoid scores, and weights them by unbiased scores.

    The router is float32 throughout, and never quantised.
    """

    def __init__(self, dims: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.router_weight = mx.zeros((config.num_experts, dims))
        self.e_score_correction_bias = mx.zeros((config.num_experts,))
        self._routing = Routing(
            config.num_chosen,
            scores="sigmoid",
            renormalise=config.renormalise,
            epsilon=1e-20,
            scale=config.scale,
            num_groups=config.num_groups,
            num_chosen_groups=config.num_chosen_groups,
        )

    def __call__(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Return the chosen experts `[T, k]` and their weights `[T, k]`, float32."""
        logits = x.astype(mx.float32) @ self.router_weight.T
        return self._routing(logits, self.e_score_correction_bias)


class MoE(nn.Module):
    """Experts of which a few compute each token, optionally in a latent space.

    An optional shared expert computes every token.
    """

    def __init__(self, dims: int, config: ExpertsConfig, *, bias: bool) -> None:
        super().__init__()
        latent, shared = config.latent_dims, config.shared_hidden_dims
        self.gate = Router(dims, config)
        self.experts = Experts(
            config.num_experts,
            latent or dims,
            config.hidden_dims,
            gated=False,
            activation=relu2,
        )
        if latent:
            self.fc1_latent_proj = nn.Linear(dims, latent, bias=bias)
            self.fc2_latent_proj = nn.Linear(latent, dims, bias=bias)
        if shared:
            self.shared_experts = MLP(dims, shared, bias=bias)

    def __call__(self, x: mx.array) -> mx.array:
        """Return `[T, dims]` for `x [T, dims]`."""
        chosen, weights = self.gate(x)
        if "fc1_latent_proj" in self:
            out = self.experts(self.fc1_latent_proj(x), chosen, weights)
            out = self.fc2_latent_proj(out)
        else:
            out = self.experts(x, chosen, weights)
        return out + self.shared_experts(x) if "shared_experts" in self else out
