"""State that a family keeps outside the block pools, as the cold tier sees it."""

from __future__ import annotations

import math
from typing import Any

import attrs
from attrs import validators


def _all_positive(_: object, attribute: attrs.Attribute[Any], dims: tuple[int, ...]) -> None:
    if not dims or min(dims) < 1:
        raise ValueError(f"{attribute.name} must all be positive, got {dims}")


@attrs.frozen
class SidecarLayout:
    """Geometry of one sidecar: equal tensors, several a layer.

    Attributes:
        num_layers: Layers that keep state.
        tensors_per_layer: Tensors of each.
        dims: Shape of a tensor.
        itemsize: Bytes of an element.
    """

    num_layers: int = attrs.field(validator=validators.ge(1))
    tensors_per_layer: int = attrs.field(validator=validators.ge(1))
    dims: tuple[int, ...] = attrs.field(converter=tuple, validator=_all_positive)
    itemsize: int = attrs.field(validator=validators.ge(1))

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one tensor."""
        return math.prod(self.dims) * self.itemsize


@attrs.frozen
class SidecarPolicy:
    """Which state must come back together with the blocks up to a boundary.

    Attributes:
        group: Name space of the sidecar's keys, e.g. `conv_state`.
        layout: The layout at a boundary at or above the scaled axis's full extent.
        scaled_axis: Axis that follows `min(boundary, extent)`, the extent being its size in
            `layout`; None when nothing depends on the boundary.
    """

    group: str
    layout: SidecarLayout
    scaled_axis: int | None = None

    def __attrs_post_init__(self) -> None:
        axis, dims = self.scaled_axis, self.layout.dims
        if axis is not None and not 0 <= axis < len(dims):
            raise ValueError(f"scaled_axis {axis} is no axis of {dims}")

    def expected_at(self, boundary: int) -> SidecarLayout:
        """Return the only layout that is valid at `boundary` tokens.

        Raises:
            ValueError: The boundary is not positive.
        """
        if boundary < 1:
            raise ValueError(f"a boundary is a positive number of tokens, got {boundary}")
        if self.scaled_axis is None:
            return self.layout
        dims = list(self.layout.dims)
        dims[self.scaled_axis] = min(boundary, dims[self.scaled_axis])
        return attrs.evolve(self.layout, dims=tuple(dims))
