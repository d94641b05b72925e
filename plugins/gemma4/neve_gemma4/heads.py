"""Heads of Gemma 4's two types of layers, which differ in number and width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from neve.checkpoint.config import Section
from neve.contract.errors import UnsupportedModelError

from .layer_types import LayerType
from .raw import RawLayer, RawText


@attrs.frozen
class Heads:
    """The heads of a layer.

    Attributes:
        head_dim: Elements of a query, key or value.
        num_kv_heads: Key and value heads.
    """

    head_dim: int
    num_kv_heads: int


def heads_by_type(
    raw: RawText, layer_types: Sequence[LayerType], text: Section
) -> Mapping[LayerType, Heads]:
    """Return the heads of sliding layers and of full ones.

    Full layers have `global_head_dim`, and with `attention_k_eq_v` a separate number of heads.
    Newer configs state the heads of each layer in `per_layer_config`.

    Raises:
        ConfigError: A value is mistyped, or key heads do not divide the query heads.
        UnsupportedModelError: Layers of one type differ.
    """
    usual = Heads(raw.head_dim, raw.num_key_value_heads)
    own = raw.num_global_key_value_heads if raw.attention_k_eq_v else None
    full = Heads(raw.global_head_dim, own or raw.num_key_value_heads)
    heads: dict[LayerType, Heads] = {"sliding_attention": usual, "full_attention": full}
    if raw.per_layer_config is not None:
        heads |= _listed_heads(text.at("per_layer_config"), usual, layer_types)
    for layer_type, of_type in heads.items():
        _check(raw, layer_type, of_type, text)
    return heads


def _listed_heads(
    listed: Section, usual: Heads, layer_types: Sequence[LayerType]
) -> Mapping[LayerType, Heads]:
    heads: dict[LayerType, Heads] = {}
    for layer, layer_type in enumerate(layer_types):
        raw = listed.at(str(layer)).read(RawLayer)
        own = Heads(
            raw.head_dim or usual.head_dim, raw.num_key_value_heads or usual.num_kv_heads
        )
        if heads.setdefault(layer_type, own) != own:
            raise UnsupportedModelError(
                f"layers of one type must have equal heads: {listed.key(str(layer))} is {own}, "
                f"other layers of {layer_type} have {heads[layer_type]}"
            )
    return heads


def _check(raw: RawText, layer_type: LayerType, heads: Heads, text: Section) -> None:
    full = layer_type == "full_attention" and raw.per_layer_config is None
    if heads.head_dim % 2:
        key = "global_head_dim" if full else "head_dim"
        raise text.error(key, f"must be even, got {heads.head_dim}")
    if raw.num_attention_heads % heads.num_kv_heads:
        own = full and heads.num_kv_heads != raw.num_key_value_heads
        key = "num_global_key_value_heads" if own else "num_key_value_heads"
        raise text.error(
            key,
            f"must divide num_attention_heads = {raw.num_attention_heads}, "
            f"got {heads.num_kv_heads}",
        )
