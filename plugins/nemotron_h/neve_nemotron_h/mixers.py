"""The four things that a layer may do; each is called with its normed input.

Parameters are named as in the checkpoint, save the router's (see `weights`). All shapes are
token-major: `T` tokens of a step, whatever sequences they belong to.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, State
from neve.layers.fusion import fused
from neve.layers.joint import JointModule
from neve.layers.mamba2 import GatedGroupNorm, mamba2, time_step
from neve.layers.moe import Experts, Routing
from neve.layers.short_conv import ShortConv

from .config import AttentionConfig, ExpertsConfig, MambaConfig


@fused
def _rates(log_a: mx.array, skip: mx.array) -> tuple[mx.array, mx.array]:
    """Return the rates of the decays and the weights of the inputs, `[H]`, float32."""
    return -mx.exp(log_a.astype(mx.float32)), skip.astype(mx.float32)


@fused
def _add_skip(out: mx.array, skip: mx.array, x: mx.array) -> mx.array:
    return out + skip * x


class Mamba(nn.Module):
    """A Mamba-2 layer: a short convolution, then the recurrence, gated and normed.

    Its state is the convolution's last inputs `[K - 1, C]` and the matrices `[H, P, n]`, both
    float32.
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

    def __call__(self, x: mx.array, context: ForwardContext) -> mx.array:
        """Return `[T, hidden]`."""
        inner = self.config.inner_dim
        gate, conv, dt = mx.split(
            self.in_proj(x), [inner, inner + self.config.conv_dim], axis=-1
        )
        dt = time_step(dt, self.dt_bias, self.config.limit)
        return self.out_proj(self.norm(context.scan(self.layer, (conv, dt), self._step), gate))

    def _step(self, inputs: tuple[mx.array, ...], state: State) -> tuple[mx.array, State]:
        mixed, dt = inputs
        conv, matrices = state
        mixed, conv = self.conv1d(mixed.astype(mx.float32), conv)
        x, b, c = self._heads(mixed)
        a, skip = _rates(self.A_log, self.D)
        out, matrices = mamba2(x, dt, a, b, c, matrices, chunk=self.config.chunk)
        return _add_skip(out, skip[:, None], x).flatten(-2), (conv, matrices)

    def _heads(self, mixed: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Cut `[N, L, C]` into the inputs of the heads, and `B` and `C` of the groups."""
        config, shape = self.config, mixed.shape[:2]
        x, bc = mx.split(mixed, [config.inner_dim], axis=-1)
        b, c = bc.reshape(*shape, 2 * config.num_groups, config.state_dim).split(2, axis=2)
        return x.reshape(*shape, config.num_heads, config.head_dim), b, c


class Attention(JointModule):
    """Causal attention without positions."""

    JOINT = ("q_proj", "k_proj", "v_proj")

    def __init__(self, dims: int, config: AttentionConfig, layer: int) -> None:
        super().__init__()
        q_dims, kv_dims = (
            heads * config.head_dim for heads in (config.num_heads, config.num_kv_heads)
        )
        self.layer = layer
        self.config = config
        self.q_proj = nn.Linear(dims, q_dims, bias=config.bias)
        self.k_proj = nn.Linear(dims, kv_dims, bias=config.bias)
        self.v_proj = nn.Linear(dims, kv_dims, bias=config.bias)
        self.o_proj = nn.Linear(q_dims, dims, bias=config.bias)

    def __call__(self, x: mx.array, context: ForwardContext) -> mx.array:
        """Return `[T, hidden]`."""
        head_dim = self.config.head_dim
        q, k, v = (y.reshape(x.shape[0], -1, head_dim) for y in self.project(x))
        out = context.attend(self.layer, q, k, v, scale=head_dim**-0.5)
        return self.o_proj(out.flatten(-2))


@fused
def relu2(x: mx.array) -> mx.array:
    """Return the square of what is above zero."""
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


class Router(nn.Module):
    """Chooses experts by biased sigmoid scores, and weights them by the unbiased ones.

    It is float32 throughout, and never quantised.
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
        )

    def __call__(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Return the chosen experts `[T, k]` and their weights `[T, k]`, float32."""
        logits = x.astype(mx.float32) @ self.router_weight.T
        return self._routing(logits, self.e_score_correction_bias)


class MoE(nn.Module):
    """Experts of which a few compute a token, perhaps in a narrower space, and a shared one."""

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
