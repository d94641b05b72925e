"""Llama: grouped-query attention and a gated MLP.

Parameters are named as in Hugging Face checkpoints.
"""

from __future__ import annotations

from neve.layers.attention import Attention
from neve.layers.decoder import Block, DecoderModel, Trunk
from neve.layers.heads import HeadShape
from neve.layers.mlp import GatedMLP
from neve.layers.norms import RMSNorm

from .config import LlamaConfig


class Llama(DecoderModel):
    """The model with its head."""

    def __init__(self, config: LlamaConfig) -> None:
        layers = [_block(config, layer) for layer in range(config.num_hidden_layers)]
        norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        trunk = Trunk(config.vocab_size, config.hidden_size, layers, norm)
        super().__init__(trunk, tied=config.tie_word_embeddings)


def _block(config: LlamaConfig, layer: int) -> Block:
    dims, head_dim, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
    attention = Attention(
        dims,
        HeadShape(config.num_attention_heads, config.num_key_value_heads, head_dim),
        layer,
        rope=config.rope,
        bias=config.attention_bias,
    )
    mlp = GatedMLP(dims, config.intermediate_size, bias=config.mlp_bias)
    return Block(attention, mlp, lambda: RMSNorm(dims, eps=eps))
