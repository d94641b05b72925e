"""LFM2: gated short convolutions and grouped-query attention, with dense or sparse MLPs.

Parameters are named as in the checkpoint, save the stacked experts (see `weights`). All shapes
are token-major: `T` tokens of a step, whatever sequences they belong to.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, Scoring, State, StepBatch
from neve.layers.heads import HeadShape, Projected
from neve.layers.joint import JointModule
from neve.layers.mlp import gated
from neve.layers.moe import Experts, Routing
from neve.layers.norms import RMSNorm
from neve.layers.short_conv import ShortConv
from neve.layers.stream import Delta, Normed, Stream, project

from .config import ExpertsConfig, Lfm2Config


class Attention(JointModule):
    """Attention of one layer, with normed queries and keys."""

    JOINT = ("q_proj", "k_proj", "v_proj")

    def __init__(self, config: Lfm2Config, layer: int) -> None:
        super().__init__()
        dims, head_dim = config.hidden_size, config.head_dim
        self.layer = layer
        self.rope = config.rope
        self.scoring = Scoring(head_dim**-0.5)
        self.heads = HeadShape(config.num_attention_heads, config.num_key_value_heads, head_dim)
        q_dims = config.num_attention_heads * head_dim
        kv_dims = config.num_key_value_heads * head_dim
        self.q_proj = nn.Linear(dims, q_dims, bias=False)
        self.k_proj = nn.Linear(dims, kv_dims, bias=False)
        self.v_proj = nn.Linear(dims, kv_dims, bias=False)
        self.out_proj = nn.Linear(q_dims, dims, bias=False)
        self.q_layernorm = RMSNorm(head_dim, eps=config.norm_eps)
        self.k_layernorm = RMSNorm(head_dim, eps=config.norm_eps)

    def __call__(self, x: Normed, context: ForwardContext) -> Delta:
        """Return what is added to the stream, for `x [T, hidden]`."""
        projected = Projected(
            self.project_parts(x),
            self.heads,
            q_norm=self.q_layernorm,
            k_norm=self.k_layernorm,
            rope=self.rope,
        )
        out = context.attend_projected(self.layer, projected, self.scoring)
        return Delta(self.out_proj, out)


class GatedConv(nn.Module):
    """A short convolution between two gates: `out(c * conv(b * x))`."""

    def __init__(self, config: Lfm2Config, layer: int) -> None:
        super().__init__()
        dims, bias = config.hidden_size, config.conv_bias
        self.layer = layer
        self.conv = ShortConv(dims, config.conv_length, bias=bias)
        self.in_proj = nn.Linear(dims, 3 * dims, bias=bias)
        self.out_proj = nn.Linear(dims, dims, bias=bias)

    def __call__(self, x: Normed, context: ForwardContext) -> Delta:
        """Return what is added to the stream, for `x [T, hidden]`."""
        # gates, and what they gate, side by side
        rows = project(self.in_proj, x)
        return Delta(self.out_proj, context.scan(self.layer, (rows,), self._step))

    def _step(self, inputs: tuple[mx.array, ...], state: State) -> tuple[mx.array, State]:
        out, rows = self.conv.gated(inputs[0], state[0])
        return out, (rows,)


class DenseMLP(JointModule):
    """`w2(silu(w1(x)) * w3(x))`."""

    JOINT = ("w1", "w3")

    def __init__(self, dims: int, hidden_dims: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dims, hidden_dims, bias=False)
        self.w2 = nn.Linear(hidden_dims, dims, bias=False)
        self.w3 = nn.Linear(dims, hidden_dims, bias=False)

    def __call__(self, x: Normed) -> Delta:
        """Return what is added to the stream, for `x [T, dims]`."""
        return Delta(self.w2, gated(self, x))


class SparseMLP(nn.Module):
    """Experts behind a sigmoid router, whose bias enters the choice and not the weights."""

    def __init__(self, dims: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.routing = Routing(
            config.num_experts_per_tok,
            scores="sigmoid",
            renormalise=config.norm_topk_prob,
            epsilon=1e-6,  # as the makers' implementation has it
            scale=config.routed_scaling_factor,
        )
        self.gate = nn.Linear(dims, config.num_experts, bias=False)
        self.experts = Experts(config.num_experts, dims, config.intermediate_size)
        if config.use_expert_bias:
            self.expert_bias = mx.zeros((config.num_experts,))

    def __call__(self, x: Normed) -> mx.array:
        """Return what is added to the stream, for `x [T, dims]`."""
        rows = x.computed()
        chosen, weights = self.routing(self.gate(rows), self.get("expert_bias"))
        return self.experts(rows, chosen, weights)


class Block(nn.Module):
    """One layer: convolution or attention, then an MLP, each behind a norm and a residual."""

    def __init__(self, config: Lfm2Config, layer: int) -> None:
        super().__init__()
        dims, experts = config.hidden_size, config.experts
        self.operator_norm = RMSNorm(dims, eps=config.norm_eps)
        self.ffn_norm = RMSNorm(dims, eps=config.norm_eps)
        if config.layer_types[layer] == "conv":
            self.conv = GatedConv(config, layer)
        else:
            self.self_attn = Attention(config, layer)
        if experts is None or layer < experts.num_dense_layers:
            self.feed_forward = DenseMLP(dims, config.intermediate_size)
        else:
            self.feed_forward = SparseMLP(dims, experts)

    def __call__(self, stream: Stream, context: ForwardContext) -> Stream:
        """Return the stream `[T, hidden]` after the layer."""
        mixer = self.conv if "conv" in self else self.self_attn
        stream, normed = stream.norm(self.operator_norm)
        stream = stream.add(mixer(normed, context))
        stream, normed = stream.norm(self.ffn_norm)
        return stream.add(self.feed_forward(normed))


class Trunk(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: Lfm2Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Block(config, i) for i in range(config.num_hidden_layers)]
        self.embedding_norm = RMSNorm(config.hidden_size, eps=config.norm_eps)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return the normed hidden states `[R, hidden]` of the rows that want logits."""
        stream = Stream(self.embed_tokens(batch.ids))
        for block in self.layers:
            stream = block(stream, context)
        return stream.norm_rows(self.embedding_norm, batch.logit_rows)


class Lfm2(nn.Module):
    """The model with its head."""

    def __init__(self, config: Lfm2Config) -> None:
        super().__init__()
        self.model = Trunk(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return logits `[R, vocab_size]`."""
        hidden = self.model(batch, context)
        if "lm_head" in self:
            return self.lm_head(hidden)
        return self.model.embed_tokens.as_linear(hidden)
