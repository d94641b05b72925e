"""Routes of layer calls: the storage of each call, and checks against the layout.

An unchecked call with a wrong layer or wrong head shapes would overwrite live keys, or raise
an index or broadcast error far from its cause.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn, TypeAlias

import mlx.core as mx

from ..contract.cache_spec import AttentionSpec, CacheLayout, Owned, RecurrentState
from ..contract.heads import Projected
from ..errors import CacheMisuseError


class HeadsGiven(NamedTuple):
    """Shapes of the heads in a call of `attend`.

    Attributes:
        num_heads: Query heads.
        head_dim: Elements of a query head.
        keys: Key heads, and elements of each; None without keys.
        values: Value heads, and elements of each; None without values.
    """

    num_heads: int
    head_dim: int
    keys: Heads | None
    values: Heads | None

    @classmethod
    def of(cls, q: mx.array, k: mx.array | None, v: mx.array | None) -> HeadsGiven:
        """Return the shapes of queries, keys and values `[T, H, D]`."""
        _, num_heads, head_dim = q.shape
        return cls(num_heads, head_dim, _heads(k), _heads(v))

    @classmethod
    def projected(cls, projected: Projected) -> HeadsGiven:
        """Return the shapes of the heads in projections."""
        shape = projected.shape
        heads, dim = shape.kv_heads, shape.head_dim
        if not heads:
            return cls(shape.num_heads, dim, None, None)
        return cls(shape.num_heads, dim, (heads, dim), (heads, shape.value_dim))

    def fits(self, spec: AttentionSpec) -> bool:
        """Return whether the shapes match a layer's specification."""
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
"""Number of heads, and elements of a head."""


def _heads(x: mx.array | None) -> Heads | None:
    return None if x is None else x.shape[1:]


def _declared(spec: AttentionSpec) -> str:
    return (
        f"queries [T, n * {spec.kv_heads}, {spec.head_dim}], keys [T, {spec.kv_heads}, "
        f"{spec.head_dim}] and values [T, {spec.kv_heads}, {spec.value_dim}]"
    )


class StepRoutes:
    """The routes of one step. Each layer is called at most once, in layer order."""

    def __init__(self, layout: CacheLayout) -> None:
        self._layout = layout
        self._num_layers = len(layout.routes)
        self._last = -1

    def attend(self, layer: int, given: HeadsGiven) -> Owned:
        """Return the owner of a layer's keys and values.

        Keys of an alias are refused, since they would overwrite the keys of its anchor.

        Raises:
            CacheMisuseError: The layer does not exist, was called before, or has no
                attention; heads have undeclared shapes; an owner gives no keys and values,
                or an alias gives some.
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
        """Return the specification of a layer's recurrent state.

        Raises:
            CacheMisuseError: The layer does not exist, was called before, or is not
                recurrent.
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
