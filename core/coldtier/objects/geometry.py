"""The tensors of the two kinds of object: KV blocks and sidecars."""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence

import attrs
from attrs import validators

from ...contract.cache_spec import CacheLayout
from ...contract.page_format import KEYS, VALUES, PageFormat
from ...contract.sidecar import SidecarLayout
from .header import ObjectLayout, TensorSpec
from .keys import ColdGroup

STATE = "state"
"""Metadata of a block: the group of the sidecars without which it cannot be restored."""

STORED_DTYPES: Mapping[str, str] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Dtype of an array -> its name in a file."""

_TENSORS = {KEYS: "key", VALUES: "value"}
"""Plane -> its tensor's name in a file, where they differ."""


@attrs.frozen
class KvGeometry:
    """How a pool stores one block of all its layers.

    Attributes:
        block_size: Tokens of a block, S.
        num_layers: Layers that own storage.
        page: Planes of a layer's page, each `[heads, S, dim]`.
        dtype: Dtype of planes without a dtype of their own, `F32`, `F16` or `BF16`.
    """

    block_size: int = attrs.field(validator=validators.ge(1))
    num_layers: int = attrs.field(validator=validators.ge(1))
    page: PageFormat
    dtype: str = attrs.field(validator=validators.in_(tuple(STORED_DTYPES.values())))

    @classmethod
    def of(cls, layout: CacheLayout, block_size: int, dtype: str) -> KvGeometry:
        """Return the geometry of a layout's primary group.

        Args:
            layout: The model's cache layout.
            block_size: Tokens of a block.
            dtype: Dtype of the cache, e.g. `bfloat16`.
        """
        group = layout.primary
        page, num_layers = layout.groups[group].page_format, layout.num_group_layers(group)
        return cls(block_size, num_layers, page, STORED_DTYPES[dtype])

    def tensors(self) -> list[TensorSpec]:
        """Return the tensors of a block, layer by layer."""
        return [
            TensorSpec(
                f"layer.{layer}.{_TENSORS.get(plane.name, plane.name)}",
                self.dtype if plane.dtype is None else STORED_DTYPES[plane.dtype],
                plane.shape(self.block_size),
            )
            for layer in range(self.num_layers)
            for plane in self.page.planes
        ]

    def facts(self) -> dict[str, str]:
        """Return what the metadata of a block says of its shape."""
        facts = {"block_size": str(self.block_size), "num_layers": str(self.num_layers)}
        plain = self.page.plain
        if plain is not None:  # the names and the order of files that exist
            facts |= zip(("kv_heads", "head_dim", "v_head_dim"), map(str, plain), strict=True)
        else:
            facts["planes"] = " ".join(
                f"{plane.name}:{plane.heads}x{plane.dim}" for plane in self.page.planes
            )
        return facts | {"dtype": self.dtype}


@functools.lru_cache(maxsize=16)
def kv_layout(geometry: KvGeometry, state: ColdGroup | None = None) -> ObjectLayout:
    """Return the layout of a KV block: its token ids, then its planes layer by layer.

    Args:
        geometry: Of the model's blocks.
        state: Group of the sidecars without which a block cannot be restored; None for a
            family that keeps all in its blocks.
    """
    tokens = TensorSpec("tokens", "U32", (geometry.block_size,))
    facts = geometry.facts() | ({} if state is None else {STATE: state.value})
    return ObjectLayout(ColdGroup.KV, [tokens, *geometry.tensors()], facts.items())


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
        TensorSpec(f"layer.{layer}.{t.name}", STORED_DTYPES[t.dtype], t.dims)
        for layer in range(layout.num_layers)
        for t in layout.tensors
    ]
    facts = (("boundary_tokens", str(boundary)), ("num_layers", str(layout.num_layers)))
    return ObjectLayout(group, tensors, facts)


def encode_tokens(tokens: Sequence[int]) -> bytes:
    """Return token ids as the tensor `tokens` holds them, 32 bits each, little-endian."""
    return struct.pack(f"<{len(tokens)}I", *tokens)
