"""What tensors the two kinds of object consist of: blocks of keys and values, and sidecars."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

import attrs
from attrs import validators

from ...contract.sidecar import SidecarLayout
from .header import ObjectLayout, TensorSpec
from .keys import ColdGroup

STATE = "state"
"""Metadata of a block: the group of the sidecars without which it cannot be restored."""

_CACHE_DTYPES = ("F32", "F16", "BF16")
_SIDECAR_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@attrs.frozen
class KvGeometry:
    """How a pool stores one block of all its layers.

    Attributes:
        block_size: Tokens of a block, S.
        num_layers: Layers that own storage.
        kv_heads: Heads of a layer, Hk.
        head_dim: Width of a key; a layer's keys are `[Hk, S, D]`.
        v_head_dim: Width of a value; a layer's values are `[Hk, S, Dv]`.
        dtype: `F32`, `F16` or `BF16`.
    """

    block_size: int = attrs.field(validator=validators.ge(1))
    num_layers: int = attrs.field(validator=validators.ge(1))
    kv_heads: int = attrs.field(validator=validators.ge(1))
    head_dim: int = attrs.field(validator=validators.ge(1))
    v_head_dim: int = attrs.field(validator=validators.ge(1))
    dtype: str = attrs.field(validator=validators.in_(_CACHE_DTYPES))


@functools.lru_cache(maxsize=16)
def kv_layout(geometry: KvGeometry, state: ColdGroup | None = None) -> ObjectLayout:
    """Return the layout of a KV block: its token ids, then keys and values layer by layer.

    Args:
        geometry: Of the model's blocks.
        state: Group of the sidecars without which a block cannot be restored; None for a
            family that keeps all in its blocks.
    """
    tensors = [TensorSpec("tokens", "U32", (geometry.block_size,))]
    rows = (geometry.kv_heads, geometry.block_size)
    for layer in range(geometry.num_layers):
        for part, width in (("key", geometry.head_dim), ("value", geometry.v_head_dim)):
            tensors.append(TensorSpec(f"layer.{layer}.{part}", geometry.dtype, (*rows, width)))
    facts = [(name, str(value)) for name, value in attrs.asdict(geometry).items()]
    if state is not None:
        facts.append((STATE, state.value))
    return ObjectLayout(ColdGroup.KV, tensors, facts)


@functools.lru_cache(maxsize=128)
def sidecar_layout(group: ColdGroup, layout: SidecarLayout, boundary: int) -> ObjectLayout:
    """Return the layout of a sidecar: its tensors layer by layer.

    Args:
        group: Any but KV.
        layout: What the family's policy expects at `boundary`.
        boundary: Tokens after which the state was taken.

    Raises:
        ValueError: The group is KV, or the boundary is not positive.
    """
    if group is ColdGroup.KV or boundary < 1:
        raise ValueError(f"{boundary} is no boundary of {group.value} state")
    tensors = [
        TensorSpec(f"layer.{layer}.{t.name}", _SIDECAR_DTYPES[t.dtype], t.dims)
        for layer in range(layout.num_layers)
        for t in layout.tensors
    ]
    facts = (("boundary_tokens", str(boundary)), ("num_layers", str(layout.num_layers)))
    return ObjectLayout(group, tensors, facts)


def encode_tokens(tokens: Sequence[int]) -> bytes:
    """Return token ids as the tensor `tokens` holds them, 32 bits each, little-endian."""
    return struct.pack(f"<{len(tokens)}I", *tokens)
