"""A config.json derived from a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import CheckpointError
from .gguf_header import GGUFHeader

DEFAULT_ROPE_THETA = 10000.0
"""Value of an absent `rope.freq_base` in GGUF."""

_KEYS: Mapping[str, str] = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
}

_SCALING_KEYS: Mapping[str, str] = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.attn_factor",
}

_TOKEN_IDS = ("bos_token_id", "eos_token_id")


def _decimal(value: Any) -> Any:
    """Return a float32 as the shortest decimal: 1e-05, not 9.99999974e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _pick(metadata: Mapping[str, Any], arch: str, keys: Mapping[str, str]) -> dict[str, Any]:
    found = {key: f"{arch}.{suffix}" for key, suffix in keys.items()}
    return {k: _decimal(metadata[path]) for k, path in found.items() if path in metadata}


def _rope_scaling(metadata: Mapping[str, Any], arch: str) -> dict[str, Any]:
    kind = metadata.get(f"{arch}.rope.scaling.type", "none")
    if kind == "none":
        return {}
    return {"rope_scaling": {"rope_type": kind, **_pick(metadata, arch, _SCALING_KEYS)}}


def _num_kv_heads(metadata: Mapping[str, Any], arch: str) -> dict[str, Any]:
    heads = metadata.get(f"{arch}.attention.head_count")
    kv_heads = metadata.get(f"{arch}.attention.head_count_kv", heads)
    return {} if kv_heads is None else {"num_key_value_heads": kv_heads}


def _token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    keys = {name: f"tokenizer.ggml.{name}" for name in _TOKEN_IDS}
    return {name: metadata[key] for name, key in keys.items() if key in metadata}


def gguf_config(header: GGUFHeader) -> dict[str, Any]:
    """Return the metadata under the keys of a config.json.

    Keys without a counterpart in the file are left out.

    Raises:
        CheckpointError: The file names no architecture, or has no token embedding.
    """
    metadata = header.metadata
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise CheckpointError("general.architecture is missing, so the model is unknown")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError("there is no token_embd.weight: this is no language model")
    rope_theta = _decimal(metadata.get(f"{arch}.rope.freq_base", DEFAULT_ROPE_THETA))
    return {
        "model_type": arch,
        **_pick(metadata, arch, _KEYS),
        **_num_kv_heads(metadata, arch),
        "rope_theta": rope_theta,
        **_rope_scaling(metadata, arch),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **_token_ids(metadata),
    }
