"""Which storage a layer's call means, and whether the call fits what the layout declares.

A call for another layer, or with heads of another shape, would write over keys that are
wanted still, or end as an index or broadcast error far from its cause.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn, TypeAlias

import mlx.core as mx

from ..contract.cache_spec import AttentionSpec, CacheLayout, Owned, RecurrentState
from ..contract.heads import Projected
from ..errors import CacheMisuseError


class HeadsGiven(NamedTuple):
    """Shapes of what a layer brings to a call of `attend`.

    Attributes:
        num_heads: Query heads.
        head_dim: Elements of a query.
        keys: Heads and elements of a key, None without keys.
        values: Heads and elements of a value, None without values.
    """

    num_heads: int
    head_dim: int
    keys: Heads | None
    values: Heads | None

    @classmethod
    def of(cls, q: mx.array, k: mx.array | None, v: mx.array | None) -> HeadsGiven:
        """Return those of queries, keys and values `[T, H, D]`."""
        _, num_heads, head_dim = q.shape
        return cls(num_heads, head_dim, _heads(k), _heads(v))

    @classmethod
    def projected(cls, projected: Projected) -> HeadsGiven:
        """Return those of projections."""
        shape = projected.shape
        heads, dim = shape.kv_heads, shape.head_dim
        if not heads:
            return cls(shape.num_heads, dim, None, None)
        return cls(shape.num_heads, dim, (heads, dim), (heads, shape.value_dim))

    def fits(self, spec: AttentionSpec) -> bool:
        """Return whether these are heads of layers that are declared as `spec`."""
        num_heads, head_dim, keys, values = self
        kv_heads = spec.kv_heads
        return (
            head_dim == spec.head_dim
            and num_heads % kv_heads == 0
            and (keys is None or keys == (kv_heads, head_dim))
            and (values is None or values == (kv_heads, spec.value_dim))
        )

    def __str__(self) -> str:
        given = [f"queries [T, {self.num_heads}, {self.head_dim}]"]
        for name, heads in (("keys", self.keys), ("values", self.values)):
            if heads is not None:
                given.append(f"{name} [T, {heads[0]}, {heads[1]}]")
        return ", ".join(given)


Heads: TypeAlias = tuple[int, ...]
"""Heads, and elements of each."""


def _heads(x: mx.array | None) -> Heads | None:
    return None if x is None else x.shape[1:]


def _declared(spec: AttentionSpec) -> str:
    return (
        f"queries [T, n * {spec.kv_heads}, {spec.head_dim}], keys [T, {spec.kv_heads}, "
        f"{spec.head_dim}] and values [T, {spec.kv_heads}, {spec.value_dim}]"
    )


class StepRoutes:
    """The routes of one step: each layer is called at most once, in layer order."""

    def __init__(self, layout: CacheLayout) -> None:
        self._layout = layout
        self._num_layers = len(layout.routes)
        self._last = -1

    def attend(self, layer: int, given: HeadsGiven) -> Owned:
        """Return where `layer` keeps its keys and values, if what it brings fits its route.

        An alias that brought keys of its own would overwrite its anchor's, unseen.

        Raises:
            CacheMisuseError: There is no such layer, or it was called before, or keeps no
                keys; heads are not of the declared shape; an owner without keys and values,
                or an alias with some.
        """
        self._check_turn("attend in", layer)
        try:
            owner = self._layout.owner(layer)
        except ValueError as error:
            self._refuse("attend in", layer, f"{error}: its route is {self._route(layer)}")
        owns = self._layout.routes[layer] is owner
        if (given.keys is not None) != owns or (given.values is not None) != owns:
            state = (
                "an owner needs k and v" if owns else "an alias takes k and v from its anchor"
            )
            self._refuse("attend in", layer, state)
        spec = self._layout.groups[owner.group]
        if not given.fits(spec):
            state = f"the layout declares {_declared(spec)}; given are {given}"
            self._refuse("attend in", layer, state)
        self._last = layer
        return owner

    def scan(self, layer: int) -> RecurrentState:
        """Return the state that `layer` keeps.

        Raises:
            CacheMisuseError: There is no such layer, or it was called before, or keeps none.
        """
        self._check_turn("scan", layer)
        try:
            state = self._layout.state(layer)
        except ValueError as error:
            self._refuse("scan", layer, f"{error}: its route is {self._route(layer)}")
        self._last = layer
        return state

    def _check_turn(self, operation: str, layer: int) -> None:
        if self._last < layer < self._num_layers and layer >= 0:
            return
        if 0 <= layer < self._num_layers:
            state = (
                f"layer {self._last} was called before in this step; each layer is called "
                "once, in layer order"
            )
        else:
            number = self._num_layers
            state = f"the layout declares {number} layers, 0 to {number - 1}"
        self._refuse(operation, layer, state)

    def _route(self, layer: int) -> str:
        return type(self._layout.routes[layer]).__name__

    def _refuse(self, operation: str, layer: int, state: str) -> NoReturn:
        raise CacheMisuseError(f"{operation} layer {layer}", state)
