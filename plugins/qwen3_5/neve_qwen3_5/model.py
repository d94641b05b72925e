"""Qwen3.5: gated delta nets, full attention in between, and an MLP or experts after each.

Parameters are named as in the makers' checkpoints. All shapes are token-major: `T` tokens of
a step, whatever sequences they belong to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, Scoring, State, StepBatch
from neve.layers.fusion import fused
from neve.layers.gated_delta import Columns, gated_delta_mixed
from neve.layers.gated_norm import GatedRMSNorm
from neve.layers.heads import HeadShape, Projected
from neve.layers.joint import JointModule
from neve.layers.mlp import GatedMLP
from neve.layers.moe import Experts, Routing
from neve.layers.norms import ResidualNorm
from neve.layers.short_conv import ShortConv
from neve.layers.stream import Delta, Normed, Stream

from .config import ExpertsConfig, Qwen35Config

Norm: TypeAlias = Callable[[int], ResidualNorm]
"""Width -> a norm of the residual stream, or of heads."""


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
        self.scoring = Scoring(head_dim**-0.5)
        self.heads = HeadShape(
            config.num_attention_heads,
            config.num_key_value_heads,
            head_dim,
            query_stride=2 * head_dim,
        )
        q_dims = config.num_attention_heads * head_dim
        kv_dims = config.num_key_value_heads * head_dim
        self.q_proj = nn.Linear(dims, 2 * q_dims, bias=bias)
        self.k_proj = nn.Linear(dims, kv_dims, bias=bias)
        self.v_proj = nn.Linear(dims, kv_dims, bias=bias)
        self.o_proj = nn.Linear(q_dims, dims, bias=bias)
        self.q_norm = norm(head_dim)
        self.k_norm = norm(head_dim)

    def __call__(self, x: Normed, context: ForwardContext) -> Delta:
        """Return what is added to the stream, for `x [T, hidden]`."""
        parts = self.project_parts(x)
        projected = Projected(
            parts, self.heads, q_norm=self.q_norm, k_norm=self.k_norm, rope=self.rope
        )
        out = context.attend_projected(self.layer, projected, self.scoring)
        return Delta(self.o_proj, _gated(out, self._gate(parts[0])))

    def _gate(self, rows: mx.array) -> mx.array:
        """Return `[T, Hq, D]`: each head's gate lies behind its query."""
        heads = self.heads
        queries = rows[:, : heads.ends[0]].reshape(-1, heads.num_heads, heads.query_stride)
        return queries[..., heads.head_dim :]


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
        self.in_proj_qkv = nn.Linear(dims, delta.conv_dim, bias=False)
        self.in_proj_z = nn.Linear(dims, value_dims, bias=False)
        self.in_proj_b = nn.Linear(dims, delta.value_heads, bias=False)
        self.in_proj_a = nn.Linear(dims, delta.value_heads, bias=False)
        self.conv1d = ShortConv(delta.conv_dim, delta.kernel, activation=nn.silu)
        self.A_log = mx.zeros((delta.value_heads,))
        self.dt_bias = mx.zeros((delta.value_heads,))
        self.norm = GatedRMSNorm(delta.value_dim, eps=config.rms_norm_eps)
        self.out_proj = nn.Linear(value_dims, dims, bias=False)
        end = delta.conv_dim + value_dims
        self._gates = delta.conv_dim
        self._columns = Columns(rate=end, decay=end + delta.value_heads)

    def __call__(self, x: Normed, context: ForwardContext) -> Delta:
        """Return what is added to the stream, for `x [T, hidden]`."""
        rows = self.project_joined(x)
        out = context.scan(self.layer, (rows,), self._step)
        return Delta(self.out_proj, self.norm(out, rows, start=self._gates))

    def _step(self, inputs: tuple[mx.array, ...], state: State) -> tuple[mx.array, State]:
        (rows,) = inputs
        conv, matrices = state
        mixed, conv = self.conv1d(rows, conv)
        out, matrices = gated_delta_mixed(
            mixed, rows, self._columns, self.A_log, self.dt_bias, matrices
        )
        return out, (conv, matrices)


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

    def delta(self, x: Normed) -> mx.array:
        """Return what is added to the stream, for `x [T, dims]`."""
        rows = x.computed()
        logits, gate = self.project(rows)
        chosen, weights = self._routing(logits)
        return self.experts(rows, chosen, weights) + _gated(self.shared_expert(rows), gate)


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

    def __call__(self, stream: Stream, context: ForwardContext) -> Stream:
        """Return the stream `[T, hidden]` after the layer."""
        mixer = self.self_attn if "self_attn" in self else self.linear_attn
        stream, normed = stream.norm(self.input_layernorm)
        stream = stream.add(mixer(normed, context))
        stream, normed = stream.norm(self.post_attention_layernorm)
        return stream.add(self.mlp.delta(normed))


class Trunk(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: Qwen35Config, norm: Norm) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Block(config, i, norm) for i in range(len(config.full_attention))]
        self.norm = norm(config.hidden_size)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return the normed hidden states `[R, hidden]` of the rows that want logits."""
        stream = Stream(self.embed_tokens(batch.ids))
        for block in self.layers:
            stream = block(stream, context)
        return stream.norm_rows(self.norm, batch.logit_rows)


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
