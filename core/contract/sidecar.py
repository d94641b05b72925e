"""State outside the block pools, as the cold tier stores it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from attrs import validators

from .cache_spec import CacheLayout, Recurrent
from .dtypes import DTYPE_BYTES
from .layer_spec import SlidingWindow

SIDECAR_GROUPS = frozenset({"gdn_state", "conv_state", "sliding_window", "ssm_state"})
"""The key prefixes of sidecars."""

SIDECAR_ITEMSIZES: Mapping[str, int] = DTYPE_BYTES
"""Dtype -> bytes of an element."""

MAX_TENSORS = 16
MAX_DIMS = 8


def _sound_dims(_: object, attribute: attrs.Attribute[Any], dims: tuple[int, ...]) -> None:
    if not dims or min(dims) < 1 or len(dims) > MAX_DIMS:
        raise ValueError(
            f"{attribute.name} must be 1 to {MAX_DIMS} positive integers, got {dims}"
        )


@attrs.frozen
class SidecarTensor:
    """One tensor of a layer's state.

    Attributes:
        name: Name of `a-z`, `0-9` and `_`, unique within the layer.
        dims: Shape of the tensor.
        dtype: A key of `SIDECAR_ITEMSIZES`; storage and installation keep this dtype.
    """

    name: str = attrs.field(validator=validators.matches_re(r"[a-z0-9_]+"))
    dims: tuple[int, ...] = attrs.field(converter=tuple, validator=_sound_dims)
    dtype: str = attrs.field(validator=validators.in_(SIDECAR_ITEMSIZES))

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.dims) * SIDECAR_ITEMSIZES[self.dtype]


@attrs.frozen
class SidecarLayout:
    """Geometry of one sidecar: every layer with state has the same tensors.

    Attributes:
        num_layers: Layers that keep state.
        tensors: Tensors of one layer, in the order of the file.
    """

    num_layers: int = attrs.field(validator=validators.ge(1))
    tensors: tuple[SidecarTensor, ...] = attrs.field(converter=tuple)

    def __attrs_post_init__(self) -> None:
        names = [tensor.name for tensor in self.tensors]
        if not 1 <= len(names) <= MAX_TENSORS:
            raise ValueError(f"tensors must be 1 to {MAX_TENSORS} a layer, got {len(names)}")
        if len(set(names)) != len(names):
            raise ValueError(f"tensors must have different names, got {names}")

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer's state."""
        return sum(tensor.num_bytes for tensor in self.tensors)

    @property
    def num_bytes(self) -> int:
        """Bytes of the state of all layers."""
        return self.num_layers * self.layer_bytes


@attrs.frozen
class SidecarPolicy:
    """The state that a restore needs beside the blocks up to a boundary.

    Attributes:
        group: Name space of the sidecar's keys, one of `SIDECAR_GROUPS`.
        layout: The layout at a boundary at or above the scaled axis's full extent.
        scaled_axis: Axis of length `min(boundary, extent)` in every tensor, with the extent
            from `layout`; None when no axis depends on the boundary.
        anchors: Boundaries, in blocks and ascending, at which the state of every prompt is
            written. All prompts use the same anchors, so prompts with a common prefix share
            one object. Empty for a state whose boundaries follow the prompt.
    """

    group: str = attrs.field(validator=validators.in_(SIDECAR_GROUPS))
    layout: SidecarLayout
    scaled_axis: int | None = None
    anchors: tuple[int, ...] = attrs.field(
        default=(), converter=tuple, validator=validators.deep_iterable(validators.ge(1))
    )

    def __attrs_post_init__(self) -> None:
        axis = self.scaled_axis
        if axis is None:
            return
        for tensor in self.layout.tensors:
            if not 0 <= axis < len(tensor.dims):
                raise ValueError(f"scaled_axis {axis} is no axis of {tensor}")
        extents = {tensor.dims[axis] for tensor in self.layout.tensors}
        if len(extents) > 1:
            raise ValueError(
                f"scaled_axis {axis} must be as long in every tensor, got {sorted(extents)}"
            )

    def expected_at(self, boundary: int) -> SidecarLayout:
        """Return the one valid layout at a boundary of `boundary` tokens.

        Raises:
            ValueError: The boundary is not positive.
        """
        if boundary < 1:
            raise ValueError(f"a boundary is a positive number of tokens, got {boundary}")
        if self.scaled_axis is None:
            return self.layout
        tensors = [_cut(t, self.scaled_axis, boundary) for t in self.layout.tensors]
        return attrs.evolve(self.layout, tensors=tensors)


def recurrent_policy(group: str, layout: CacheLayout, dtype: str) -> SidecarPolicy:
    """Return the policy of a family whose recurrent layers all keep the same tensors.

    Args:
        group: Name space of the sidecars.
        layout: The family's cache layout, with one state group.
        dtype: Compute dtype, for tensors without a dtype of their own.

    Raises:
        ValueError: The layout has no state group, or several.
    """
    if len(layout.states) != 1:
        raise ValueError(f"a sidecar holds one kind of state, the layout has {layout.states}")
    num_layers = sum(isinstance(route, Recurrent) for route in layout.routes)
    tensors = [
        SidecarTensor(tensor.name, tensor.shape, tensor.dtype or dtype)
        for tensor in layout.states[0].tensors
    ]
    return SidecarPolicy(group, SidecarLayout(num_layers, tensors))


ANCHOR_RATIO = 4


def anchor_grid(first: int, count: int) -> tuple[int, ...]:
    """Return the anchors `4 ** k` for `count` values of `k` from `first`, in blocks."""
    return tuple(ANCHOR_RATIO**k for k in range(first, first + count))


TOKEN_AXIS = 2


def window_policy(
    layout: CacheLayout, dtype: str, *, anchors: Sequence[int]
) -> SidecarPolicy | None:
    """Return the policy of a family with sliding attention; None if no layer has a window.

    A layer that owns its storage has one entry: keys `[1, Hk, rows, D]` and values. The rows
    are the window's positions at the boundary, oldest first.

    Args:
        layout: The family's cache layout.
        dtype: Dtype of cached keys and values.
        anchors: Boundaries that every prompt shares, in blocks; see `anchor_grid`.

    Raises:
        ValueError: Sliding layers differ in heads, dimensions or window.
    """
    specs = [spec for spec in layout.groups if isinstance(spec, SlidingWindow)]
    if not specs:
        return None
    if len(specs) > 1:
        raise ValueError(f"a sidecar holds one kind of window, the layout has {specs}")
    (spec,), (group,) = specs, layout.windows
    tensors = [
        SidecarTensor(plane.name, (1, *plane.shape(spec.window)), plane.dtype or dtype)
        for plane in spec.page_format.planes
    ]
    entries = SidecarLayout(layout.num_group_layers(group), tensors)
    return SidecarPolicy("sliding_window", entries, TOKEN_AXIS, anchors)


def _cut(tensor: SidecarTensor, axis: int, boundary: int) -> SidecarTensor:
    """Return `tensor` with axis `axis` limited to `boundary` positions."""
    dims = list(tensor.dims)
    dims[axis] = min(boundary, dims[axis])
    return attrs.evolve(tensor, dims=dims)
