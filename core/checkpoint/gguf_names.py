"""Hugging Face names for the tensors of a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_MODEL: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}

_BLOCK: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_SANDWICH: Mapping[str, str] = {
    **_BLOCK,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Names in blocks with norms on both sides of a sub-layer; `ffn_norm` differs there."""

_BLOCK_NAME = re.compile(r"blk\.(\d+)\.([^.]+)\.(weight|bias)")


def _hub_name(name: str, block: Mapping[str, str]) -> str:
    if match := _BLOCK_NAME.fullmatch(name):
        layer, part, suffix = match.groups()
        return f"model.layers.{layer}.{block[part]}.{suffix}" if part in block else name
    part, _, suffix = name.rpartition(".")
    return f"{_MODEL[part]}.{suffix}" if part in _MODEL else name


def hub_names(names: Iterable[str]) -> dict[str, str]:
    """Return GGUF name -> Hugging Face name.

    A name outside the tables of plain transformers, e.g. `rope_freqs.weight`, is kept; the
    family renames or drops the tensor.
    """
    names = list(names)
    sandwich = any(name.endswith(".post_attention_norm.weight") for name in names)
    block = _SANDWICH if sandwich else _BLOCK
    return {name: _hub_name(name, block) for name in names}
