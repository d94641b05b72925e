"""A family's declaration of its cache: groups of equal layers, and each layer's route.

Pure values. Building a `CacheLayout` validates the layout, so its users need no checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import attrs
from attrs import validators

from .layer_spec import (
    AttentionSpec,
    FullAttention,
    RecurrentState,
    SlidingWindow,
    StateTensor,
)

__all__ = [
    "Alias",
    "AttentionSpec",
    "CacheLayout",
    "FullAttention",
    "Owned",
    "Recurrent",
    "RecurrentState",
    "Route",
    "SlidingWindow",
    "StateTensor",
    "Uncached",
    "layer_routes",
    "uniform_layout",
]


@attrs.frozen
class Owned:
    """A layer that stores its own keys and values.

    Attributes:
        group: Index of its group.
        ordinal: Index of the layer among the group's layers.
    """

    group: int
    ordinal: int


@attrs.frozen
class Alias:
    """A layer that reads the keys and values of an earlier layer.

    Attributes:
        anchor: Index of the layer that owns the storage.
    """

    anchor: int


@attrs.frozen
class Recurrent:
    """A layer that keeps a recurrent state.

    Attributes:
        group: Index of its state group.
        ordinal: Index of the layer among the group's layers.
    """

    group: int
    ordinal: int


@attrs.frozen
class Uncached:
    """A layer that keeps nothing between steps."""


Route: TypeAlias = Owned | Alias | Recurrent | Uncached


@attrs.frozen
class CacheLayout:
    """Groups, one route a layer, and the block size.

    Layers of equal kind and layout form one group. A group of attention layers has its own
    allocator, pool and tables; state groups are numbered on their own.

    Attributes:
        groups: One spec a group of attention layers; no two are equal.
        routes: One route a layer, in layer order.
        block_size_multiple: The block size must be a multiple of this many tokens.
        states: One spec a group of recurrent layers; no two are equal.

    Raises:
        ValueError: A rule is broken; the message names the layer or group.
    """

    groups: tuple[AttentionSpec, ...] = attrs.field(converter=tuple)
    routes: tuple[Route, ...] = attrs.field(converter=tuple)
    block_size_multiple: int = attrs.field(default=1, validator=validators.ge(1))
    states: tuple[RecurrentState, ...] = attrs.field(default=(), converter=tuple)

    def __attrs_post_init__(self) -> None:
        if not self.routes:
            raise ValueError("a layout needs at least one layer")
        self._check_members("group", self.groups, Owned)
        self._check_members("state group", self.states, Recurrent)
        self._check_aliases()

    def _check_members(
        self, kind: str, specs: Sequence[object], route_type: type[Owned | Recurrent]
    ) -> None:
        members: list[list[int]] = [[] for _ in specs]
        for layer, route in enumerate(self.routes):
            if isinstance(route, route_type):
                if not 0 <= route.group < len(specs):
                    raise ValueError(f"layer {layer}: there is no {kind} {route.group}")
                members[route.group].append(route.ordinal)
        for group, ordinals in enumerate(members):
            if specs.index(specs[group]) != group:
                raise ValueError(
                    f"{kind}s {specs.index(specs[group])} and {group} are equal: layers of "
                    f"one kind form one {kind}"
                )
            if not ordinals:
                raise ValueError(f"{kind} {group} has no layer")
            if ordinals != list(range(len(ordinals))):
                raise ValueError(
                    f"{kind} {group}: ordinals must count 0, 1, … in layer order, "
                    f"got {ordinals}"
                )

    def _check_aliases(self) -> None:
        for layer, route in enumerate(self.routes):
            if not isinstance(route, Alias):
                continue
            if not 0 <= route.anchor < layer:
                raise ValueError(
                    f"layer {layer}: there is no anchor layer {route.anchor} before it"
                )
            if not isinstance(self.routes[route.anchor], Owned):
                raise ValueError(  # noqa: TRY004  a broken rule of the layout, no wrong type
                    f"layer {layer}: anchor {route.anchor} owns no storage (an alias points "
                    "at an owner of keys and values, never at another alias)"
                )

    @property
    def num_layers(self) -> int:
        """Layers of the model, cached or not."""
        return len(self.routes)

    def num_group_layers(self, group: int) -> int:
        """Layers that own storage in `group`."""
        return sum(isinstance(r, Owned) and r.group == group for r in self.routes)

    def owner(self, layer: int) -> Owned:
        """Return the group and ordinal of a layer's keys and values; an alias is followed.

        Raises:
            ValueError: The layer has no keys and values in the cache.
        """
        route = self.routes[layer]
        if isinstance(route, Alias):
            route = self.routes[route.anchor]
        if not isinstance(route, Owned):
            raise ValueError(f"layer {layer} has no cache")  # noqa: TRY004  as above
        return route

    def state(self, layer: int) -> RecurrentState:
        """Return the spec of a layer's recurrent state.

        Raises:
            ValueError: The layer has no recurrent state.
        """
        route = self.routes[layer]
        if not isinstance(route, Recurrent):
            raise ValueError(f"layer {layer} has no state")  # noqa: TRY004  as above
        return self.states[route.group]

    def block_bytes(self, group: int, block_size: int, itemsize: int) -> int:
        """Bytes of one block of `group`: a page of each of its layers."""
        page_bytes = self.groups[group].page_format.num_bytes(block_size, itemsize)
        return page_bytes * self.num_group_layers(group)

    def state_bytes(self, itemsize: int) -> int:
        """Bytes of one sequence's state: all recurrent layers."""
        return sum(
            self.states[r.group].num_bytes(itemsize)
            for r in self.routes
            if isinstance(r, Recurrent)
        )

    @property
    def primary(self) -> int:
        """The first group that keeps every position; 0 if there is none.

        The length of a cached prefix is counted in this group's blocks: blocks of a window
        expire.
        """
        kept = (i for i, spec in enumerate(self.groups) if spec.visible_tokens is None)
        return next(kept, 0)

    @property
    def windows(self) -> tuple[int, ...]:
        """Indices of the groups with a sliding window."""
        return tuple(i for i, spec in enumerate(self.groups) if spec.visible_tokens is not None)


LayerSpec: TypeAlias = AttentionSpec | RecurrentState | Alias | None
"""Spec of one layer: keys and values, a state, another layer's cache, or None for no cache."""


def uniform_layout(spec: AttentionSpec, num_layers: int) -> CacheLayout:
    """Return the layout of a model whose layers are all alike."""
    return CacheLayout([spec], [Owned(0, i) for i in range(num_layers)])


def layer_routes(specs: Sequence[LayerSpec]) -> CacheLayout:
    """Return the layout in which layers with equal specs share a group.

    Args:
        specs: One spec a layer, in layer order; an `Alias` for a layer that reads another
            layer's keys and values, None for a layer without a cache.
    """
    groups = list(dict.fromkeys(s for s in specs if isinstance(s, AttentionSpec)))
    states = list(dict.fromkeys(s for s in specs if isinstance(s, RecurrentState)))
    counts: Counter[AttentionSpec | RecurrentState] = Counter()
    routes: list[Route] = []
    for spec in specs:
        match spec:
            case None:
                routes.append(Uncached())
            case Alias():
                routes.append(spec)
            case AttentionSpec():
                routes.append(Owned(groups.index(spec), counts[spec]))
                counts[spec] += 1
            case RecurrentState():
                routes.append(Recurrent(states.index(spec), counts[spec]))
                counts[spec] += 1
    return CacheLayout(groups, routes, states=states)
