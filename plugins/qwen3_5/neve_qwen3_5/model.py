"""Qwen3.5: gated delta nets with full attention in between, each before an MLP or experts.

Parameters are named as in Qwen's checkpoints. All shapes are token-major: `T` tokens of a step,
over all sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, State
from neve.layers.attention import Attention
from neve.layers.decoder import Block, DecoderModel, Trunk
from neve.layers.fusion import fused
from neve.layers.gated_delta import Columns, gated_delta_mixed
from neve.layers.gated_norm import GatedRMSNorm
from neve.layers.heads import HeadShape
from neve.layers.joint import JointModule
from neve.layers.mlp import GatedMLP
from neve.layers.moe import Experts, Routing
from neve.layers.norms import ResidualNorm
from neve.layers.short_conv import ShortConv
from neve.layers.stream import Delta, Normed

from .config import ExpertsConfig, Qwen35Config

Norm: TypeAlias = Callable[[int], ResidualNorm]
"""Maps a width to a norm of the residual stream, or of heads."""


@fused
def _gated(x: mx.array, gate: mx.array) -> mx.array:
    return x * mx.sigmoid(gate)


class GatedAttention(Attention):
    """Full attention of one layer, with gated output."""

    def __init__(self, config: Qwen35Config, layer: int, norm: Norm) -> None:
        head_dim = config.head_dim
        heads = HeadShape(
            config.num_attention_heads,
            config.num_key_value_heads,
            head_dim,
            query_stride=2 * head_dim,
        )
        super().__init__(
            config.hidden_size,
            heads,
            layer,
            rope=config.rope,
            bias=config.attention_bias,
            q_norm=norm(head_dim),
            k_norm=norm(head_dim),
        )

    def gated(self, heads: mx.array, parts: Sequence[mx.array]) -> mx.array:
        """Return the gated heads `[T, Hq, D]`; each head's gate lies behind its query."""
        shape = self.heads
        rows = parts[0][:, : shape.ends[0]]
        queries = rows.reshape(-1, shape.num_heads, shape.query_stride)
        return _gated(heads, queries[..., shape.head_dim :])


class GatedDeltaNet(JointModule):
    """A gated delta net: a short convolution, then the gated delta rule.

    The state consists of the convolution's last inputs `[K - 1, C]` and of matrices
    `[Hv, Dv, Dk]`.
    """

    JOINT = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")

    def __init__(self, config: Qwen35Config, layer: int, norm: Norm) -> None:
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
        """Return the layer's addition to the stream, for `x [T, hidden]`."""
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


class SharedSparseMLP(JointModule):
    """Experts of which a few compute each token, and a gated shared expert for all tokens."""

    JOINT = ("gate", "shared_expert_gate")

    def __init__(self, dims: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(dims, config.num_experts, bias=False)
        self.experts = Experts(config.num_experts, dims, config.hidden_dims)
        self.shared_expert = GatedMLP(dims, config.shared_hidden_dims)
        self.shared_expert_gate = nn.Linear(dims, 1, bias=False)
        self._routing = Routing(config.num_chosen)

    def delta(self, x: Normed) -> mx.array:
        """Return the MLP's addition to the stream, for `x [T, dims]`."""
        rows = x.computed()
        logits, gate = self.project(rows)
        chosen, weights = self._routing(logits)
        return self.experts(rows, chosen, weights) + _gated(self.shared_expert(rows), gate)


def _block(config: Qwen35Config, layer: int, norm: Norm) -> Block:
    """Return one layer: a mixer and an MLP, each with a norm and a residual."""
    dims, mlp, full = config.hidden_size, config.mlp, config.full_attention[layer]
    kind = GatedAttention if full else GatedDeltaNet
    mixer = kind(config, layer, norm)
    feed_forward = GatedMLP(dims, mlp) if isinstance(mlp, int) else SharedSparseMLP(dims, mlp)
    name = "self_attn" if full else "linear_attn"
    return Block(mixer, feed_forward, lambda: norm(dims), mixer_name=name)


class Qwen35(DecoderModel):
    """The model with its head, without the vision tower."""

    def __init__(self, config: Qwen35Config, norm: Norm) -> None:
        """Create the model.

        Args:
            config: The text model's config.
            norm: Creates the norms of the residual stream and of heads: checkpoints store
                weights of norms either as they are or as distances from one.
        """
        dims = config.hidden_size
        layers = [_block(config, layer, norm) for layer in range(len(config.full_attention))]
        trunk = Trunk(config.vocab_size, dims, layers, norm(dims))
        super().__init__(trunk, tied=config.tie_word_embeddings, text_tower=True)
