"""Qwen3.5: gated delta nets, full attention in between, and an MLP or experts after each.

Parameters are named as in the makers' checkpoints. All shapes are token-major: `T` tokens of
a step, whatever sequences they belong to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, State, StepBatch
from neve.layers.fusion import fused
from neve.layers.gated_delta import gated_delta
from neve.layers.joint import JointModule
from neve.layers.mlp import GatedMLP
from neve.layers.moe import Experts, Routing
from neve.layers.norms import GatedRMSNorm, l2_norm
from neve.layers.short_conv import ShortConv

from .config import ExpertsConfig, Qwen35Config

Norm: TypeAlias = Callable[[int], nn.Module]
"""Width -> a norm of the residual stream, or of heads."""

_L2_EPS = 1e-6


@fused
def _gated(x: mx.array, gate: mx.array) -> mx.array:
    return x * mx.sigmoid(gate)


class Attention(JointModule):
    """Full attention of one layer, its output gated."""

    JOINT = ("q_proj", "k_proj", "v_proj")

    def __init__(self, config: Qwen35Config, layer: int, norm: Norm) -> None:
        super().__init__()
        dims, head_dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.layer = layer
        self.rope = config.rope
        self.head_dim = head_dim
        q_dims = config.num_attention_heads * head_dim
        kv_dims = config.num_key_value_heads * head_dim
        self.q_proj = nn.Linear(dims, 2 * q_dims, bias=bias)
        self.k_proj = nn.Linear(dims, kv_dims, bias=bias)
        self.v_proj = nn.Linear(dims, kv_dims, bias=bias)
        self.o_proj = nn.Linear(q_dims, dims, bias=bias)
        self.q_norm = norm(head_dim)
        self.k_norm = norm(head_dim)

    def __call__(self, x: mx.array, context: ForwardContext) -> mx.array:
        """Return `[T, hidden]`."""
        num_tokens = x.shape[0]
        # each head's query lies beside its gate
        q, k, v = self.project(x)
        q, gate = q.reshape(num_tokens, -1, 2 * self.head_dim).split(2, axis=-1)
        k, v = (y.reshape(num_tokens, -1, self.head_dim) for y in (k, v))
        q = context.rope(self.q_norm(q), self.rope)
        k = context.rope(self.k_norm(k), self.rope)
        out = context.attend(self.layer, q, k, v, scale=self.head_dim**-0.5)
        return self.o_proj(_gated(out, gate).reshape(num_tokens, -1))


@fused
def _rates(
    a: mx.array, b: mx.array, log_a: mx.array, dt_bias: mx.array
) -> tuple[mx.array, mx.array]:
    """Return the logarithms of the decays and the rates of correction, float32."""
    dt = mx.logaddexp(a.astype(mx.float32) + dt_bias, 0.0)
    return -mx.exp(log_a.astype(mx.float32)) * dt, mx.sigmoid(b.astype(mx.float32))


class GatedDeltaNet(JointModule):
    """The recurrence of one layer: a short convolution, then the gated delta rule.

    Its state is the convolution's last inputs `[K - 1, C]` and the matrices `[Hv, Dv, Dk]`.
    """

    JOINT = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")

    def __init__(self, config: Qwen35Config, layer: int) -> None:
        super().__init__()
        delta, dims = config.delta, config.hidden_size
        value_dims = delta.value_heads * delta.value_dim
        self.layer = layer
        self.delta = delta
        self.in_proj_qkv = nn.Linear(dims, delta.conv_dim, bias=False)
        self.in_proj_z = nn.Linear(dims, value_dims, bias=False)
        self.in_proj_b = nn.Linear(dims, delta.value_heads, bias=False)
        self.in_proj_a = nn.Linear(dims, delta.value_heads, bias=False)
        self.conv1d = ShortConv(delta.conv_dim, delta.kernel, activation=nn.silu)
        self.A_log = mx.zeros((delta.value_heads,))
        self.dt_bias = mx.zeros((delta.value_heads,))
        self.norm = GatedRMSNorm(delta.value_dim, eps=config.rms_norm_eps)
        self.out_proj = nn.Linear(value_dims, dims, bias=False)

    def __call__(self, x: mx.array, context: ForwardContext) -> mx.array:
        """Return `[T, hidden]`."""
        qkv, z, b, a = self.project(x)
        log_g, beta = _rates(a, b, self.A_log, self.dt_bias)
        out = context.scan(self.layer, (qkv, log_g, beta), self._step)
        return self.out_proj(self.norm(out, z.reshape(out.shape)).reshape(x.shape[0], -1))

    def _step(self, inputs: tuple[mx.array, ...], state: State) -> tuple[mx.array, State]:
        qkv, log_g, beta = inputs
        conv, matrices = state
        mixed, conv = self.conv1d(qkv, conv)
        q, k, v = self._heads(mixed)
        out, matrices = gated_delta(q, k, v, log_g, beta, matrices)
        return out, (conv, matrices)

    def _heads(self, mixed: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Cut `[N, L, C]` into queries and keys, normed and float32, and values."""
        delta, shape = self.delta, mixed.shape[:2]
        qk, v = mx.split(mixed, [2 * delta.key_heads * delta.key_dim], axis=-1)
        qk = qk.reshape(*shape, 2 * delta.key_heads, delta.key_dim).astype(mx.float32)
        q, k = l2_norm(qk, eps=_L2_EPS).split(2, axis=2)
        v = v.reshape(*shape, delta.value_heads, delta.value_dim)
        return q * delta.key_dim**-0.5, k, v


class SparseMLP(JointModule):
    """Experts of which a few compute a token, and one that computes all, behind a gate."""

    JOINT = ("gate", "shared_expert_gate")

    def __init__(self, dims: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(dims, config.num_experts, bias=False)
        self.experts = Experts(config.num_experts, dims, config.hidden_dims)
        self.shared_expert = GatedMLP(dims, config.shared_hidden_dims)
        self.shared_expert_gate = nn.Linear(dims, 1, bias=False)
        self._routing = Routing(config.num_chosen)

    def __call__(self, x: mx.array) -> mx.array:
        """Return `[T, dims]` for `x [T, dims]`."""
        logits, gate = self.project(x)
        chosen, weights = self._routing(logits)
        return self.experts(x, chosen, weights) + _gated(self.shared_expert(x), gate)


class Block(nn.Module):
    """One layer: a mixer of tokens and an MLP, each behind a norm and a residual."""

    def __init__(self, config: Qwen35Config, layer: int, norm: Norm) -> None:
        super().__init__()
        dims, mlp = config.hidden_size, config.mlp
        if config.full_attention[layer]:
            self.self_attn = Attention(config, layer, norm)
        else:
            self.linear_attn = GatedDeltaNet(config, layer)
        self.mlp = GatedMLP(dims, mlp) if isinstance(mlp, int) else SparseMLP(dims, mlp)
        self.input_layernorm = norm(dims)
        self.post_attention_layernorm = norm(dims)

    def __call__(self, x: mx.array, context: ForwardContext) -> mx.array:
        """Return `[T, hidden]`."""
        mixer = self.self_attn if "self_attn" in self else self.linear_attn
        x = x + mixer(self.input_layernorm(x), context)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: Qwen35Config, norm: Norm) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Block(config, i, norm) for i in range(len(config.full_attention))]
        self.norm = norm(config.hidden_size)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return the normed hidden states `[R, hidden]` of the rows that want logits."""
        x = self.embed_tokens(batch.ids)
        for block in self.layers:
            x = block(x, context)
        return self.norm(x[batch.logit_rows])


class Towers(nn.Module):
    """What checkpoints call `model`: here the text model alone, without the vision tower."""

    def __init__(self, config: Qwen35Config, norm: Norm) -> None:
        super().__init__()
        self.language_model = Trunk(config, norm)


class Qwen35(nn.Module):
    """The model with its head."""

    def __init__(self, config: Qwen35Config, norm: Norm) -> None:
        """Make the model.

        Args:
            config: The text model's config.
            norm: Makes the norms of the residual stream and of heads: checkpoints store
                their weights with or without the one.
        """
        super().__init__()
        self.model = Towers(config, norm)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return logits `[R, vocab_size]`."""
        text = self.model.language_model
        hidden = text(batch, context)
        if "lm_head" in self:
            return self.lm_head(hidden)
        return text.embed_tokens.as_linear(hidden)
