"""LFM2: gated short convolutions and grouped-query attention, with dense or sparse MLPs.

Parameters are named as in the checkpoint, except the stacked experts (see `weights`). All
shapes are token-major: `T` tokens of a step, over all sequences.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, State
from neve.layers.attention import Attention
from neve.layers.decoder import Block, DecoderModel, Trunk
from neve.layers.heads import HeadShape
from neve.layers.joint import JointModule
from neve.layers.mlp import gated
from neve.layers.moe import Routing
from neve.layers.norms import RMSNorm
from neve.layers.short_conv import ShortConv
from neve.layers.sparse_mlp import SparseMLP
from neve.layers.stream import Delta, Normed, project

from .config import ExpertsConfig, Lfm2Config


class Lfm2Attention(Attention):
    """Attention of one layer, with normed queries and keys."""

    OUTPUT = "out_proj"
    Q_NORM, K_NORM = "q_layernorm", "k_layernorm"


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
        """Return the layer's addition to the stream, for `x [T, hidden]`."""
        # one row has both gates and the convolution's input side by side
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

    def delta(self, x: Normed) -> Delta:
        """Return the MLP's addition to the stream, for `x [T, dims]`."""
        return Delta(self.w2, gated(self, x))


def _experts(dims: int, config: ExpertsConfig) -> SparseMLP:
    """Return experts behind a sigmoid router; its bias enters only the choice."""
    routing = Routing(
        config.num_experts_per_tok,
        scores="sigmoid",
        renormalise=config.norm_topk_prob,
        epsilon=1e-6,  # as in the reference implementation
        scale=config.routed_scaling_factor,
    )
    return SparseMLP(
        dims,
        config.intermediate_size,
        config.num_experts,
        routing,
        bias=config.use_expert_bias,
    )


def _attention(config: Lfm2Config, layer: int) -> Attention:
    head_dim, eps = config.head_dim, config.norm_eps
    return Lfm2Attention(
        config.hidden_size,
        HeadShape(config.num_attention_heads, config.num_key_value_heads, head_dim),
        layer,
        rope=config.rope,
        q_norm=RMSNorm(head_dim, eps=eps),
        k_norm=RMSNorm(head_dim, eps=eps),
    )


class Lfm2Block(Block):
    """One layer: convolution or attention, then an MLP, each with a norm and a residual."""

    MLP = "feed_forward"
    NORMS = ("operator_norm", "ffn_norm")

    def __init__(self, config: Lfm2Config, layer: int) -> None:
        dims, eps, experts = config.hidden_size, config.norm_eps, config.experts
        convolves = config.layer_types[layer] == "conv"
        mixer = GatedConv(config, layer) if convolves else _attention(config, layer)
        if experts is None or layer < experts.num_dense_layers:
            mlp = DenseMLP(dims, config.intermediate_size)
        else:
            mlp = _experts(dims, experts)
        name = "conv" if convolves else "self_attn"
        super().__init__(mixer, mlp, lambda: RMSNorm(dims, eps=eps), mixer_name=name)


class Lfm2Trunk(Trunk):
    """A trunk whose final norm has another name."""

    NORM = "embedding_norm"


class Lfm2(DecoderModel):
    """The model with its head."""

    def __init__(self, config: Lfm2Config) -> None:
        dims, num_layers = config.hidden_size, config.num_hidden_layers
        layers = [Lfm2Block(config, layer) for layer in range(num_layers)]
        norm = RMSNorm(dims, eps=config.norm_eps)
        trunk = Lfm2Trunk(config.vocab_size, dims, layers, norm)
        super().__init__(trunk, tied=config.tie_word_embeddings)
