"""Two conventions of Llama weights, made one."""

from __future__ import annotations

import attrs
import mlx.core as mx

from neve.checkpoint.gguf_file import unpermute_rotary
from neve.contract.forward import RopeSpec
from neve.contract.weights import Weights

from .config import LlamaConfig

ROPE_FREQS = "rope_freqs.weight"


def hugging_face_weights(config: LlamaConfig, weights: Weights) -> Weights:
    """Return `weights` as a Hugging Face checkpoint has them.

    GGUF files of this family hold the rows of `q_proj` and `k_proj` in pairs, for a rotary
    embedding that turns neighbours; Hugging Face's turns halves. Old checkpoints carry the
    rotary frequencies. What `rope_freqs` says is already in the config's rope (see `rope_of`).
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
    """Return the rotary embedding, with the divisors that a GGUF file may carry.

    GGUF states the scaling rule of Llama 3 as one divisor a frequency, `rope_freqs`.
    """
    if ROPE_FREQS not in weights:
        return config.rope
    divisors: list[float] = weights[ROPE_FREQS].tolist()  # type: ignore[assignment]
    theta, dims = config.rope.theta, config.rope.dims
    inv_freq = tuple(theta ** (-2 * i / dims) / d for i, d in enumerate(divisors))
    return attrs.evolve(config.rope, inv_freq=inv_freq)
