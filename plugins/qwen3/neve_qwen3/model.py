"""Qwen3: grouped-query attention with normed queries and keys, and a gated MLP.

Parameters are named as in the checkpoint.
"""

from __future__ import annotations

from neve.layers.attention import Attention
from neve.layers.decoder import Block, DecoderModel, Trunk
from neve.layers.heads import HeadShape
from neve.layers.mlp import GatedMLP
from neve.layers.norms import RMSNorm

from .config import Qwen3Config


class Qwen3(DecoderModel):
    """The model with its head."""

    def __init__(self, config: Qwen3Config) -> None:
        layers = [_block(config, layer) for layer in range(config.num_hidden_layers)]
        norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        trunk = Trunk(config.vocab_size, config.hidden_size, layers, norm)
        super().__init__(trunk, tied=config.tie_word_embeddings)


def _block(config: Qwen3Config, layer: int) -> Block:
    dims, head_dim, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
    attention = Attention(
        dims,
        HeadShape(config.num_attention_heads, config.num_key_value_heads, head_dim),
        layer,
        rope=config.rope,
        bias=config.attention_bias,
        q_norm=RMSNorm(head_dim, eps=eps),
        k_norm=RMSNorm(head_dim, eps=eps),
    )
    mlp = GatedMLP(dims, config.intermediate_size)
    return Block(attention, mlp, lambda: RMSNorm(dims, eps=eps))
