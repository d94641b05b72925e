"""Conversion of two layouts of Llama weights to Hugging Face's."""

from __future__ import annotations

import attrs
import mlx.core as mx

from neve.checkpoint.gguf_file import unpermute_rotary
from neve.contract.forward import RopeSpec
from neve.contract.weights import Weights

from .config import LlamaConfig

ROPE_FREQS = "rope_freqs.weight"


def hugging_face_weights(config: LlamaConfig, weights: Weights) -> Weights:
    """Return `weights` in the layout of a Hugging Face checkpoint.

    GGUF files of this family store the rows of `q_proj` and `k_proj` in pairs, for a rotary
    embedding that rotates neighbours; Hugging Face's rotates halves. Old checkpoints contain
    the rotary frequencies, which are dropped. The divisors of `rope_freqs` are already in the
    config's rope (see `rope_of`).
    """
    num_heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}

    def keep(name: str) -> str | None:
        unused = name.endswith("rotary_emb.inv_freq") or name == ROPE_FREQS
        return None if unused else name

    def unpermute(name: str, weight: mx.array) -> mx.array:
        heads = num_heads.get(name.split(".")[-2])
        return weight if heads is None else unpermute_rotary(weight, heads)

    weights = weights.renamed(keep)
    return weights.mapped(unpermute) if weights.format == "gguf" else weights


def rope_of(config: LlamaConfig, weights: Weights) -> RopeSpec:
    """Return the rotary embedding, divided by the divisors of a GGUF file if there are any.

    GGUF stores the scaling rule of Llama 3 as one divisor a frequency, `rope_freqs`.
    """
    if ROPE_FREQS not in weights:
        return config.rope
    divisors: list[float] = weights[ROPE_FREQS].tolist()  # type: ignore[assignment]
    theta, dims = config.rope.theta, config.rope.dims
    inv_freq = tuple(theta ** (-2 * i / dims) / d for i, d in enumerate(divisors))
    return attrs.evolve(config.rope, inv_freq=inv_freq)
