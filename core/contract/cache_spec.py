"""What a family declares about its cache: groups of equal layers, and each layer's route.

Pure values. Building a `CacheLayout` validates it, so whoever holds one may rely on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import attrs
from attrs import validators


def _value_dim(spec: FullAttention) -> int:
    return spec.head_dim if spec.v_head_dim is None else spec.v_head_dim


@attrs.frozen
class FullAttention:
    """Layers whose every position stays visible.

    Attributes:
        kv_heads: Key and value heads of a layer.
        head_dim: Width of a key, in elements.
        v_head_dim: Width of a value as declared; None means `head_dim`.
        value_dim: Width of a value, in elements.
    """

    kv_heads: int = attrs.field(validator=validators.ge(1))
    head_dim: int = attrs.field(validator=validators.ge(1))
    v_head_dim: int | None = attrs.field(
        default=None, validator=validators.optional(validators.ge(1)), eq=False
    )
    value_dim: int = attrs.field(
        init=False, repr=False, default=attrs.Factory(_value_dim, takes_self=True)
    )

    def token_elements(self) -> int:
        """Elements that one token takes in one layer, keys and values together."""
        return self.kv_heads * (self.head_dim + self.value_dim)


@attrs.frozen
class Owned:
    """A layer that stores its own keys and values.

    Attributes:
        group: Index of its group.
        ordinal: Its place among the group's layers.
    """

    group: int
    ordinal: int


@attrs.frozen
class Alias:
    """A layer that reads the cache of another one.

    Attributes:
        anchor: Index of the layer that owns the storage.
    """

    anchor: int


@attrs.frozen
class Uncached:
    """A layer that keeps nothing between steps."""


Route: TypeAlias = Owned | Alias | Uncached


@attrs.frozen
class CacheLayout:
    """Groups, one route a layer, and the block size.

    Layers of equal kind and layout form one group, with its own allocator, pool and tables.

    Attributes:
        groups: One spec a group; no two are equal.
        routes: One route a layer, in layer order.
        block_size_multiple: The block size must be a multiple of this many tokens.

    Raises:
        ValueError: A rule is broken; the sentence names the layer or group.
    """

    groups: tuple[FullAttention, ...] = attrs.field(converter=tuple)
    routes: tuple[Route, ...] = attrs.field(converter=tuple)
    block_size_multiple: int = attrs.field(default=1, validator=validators.ge(1))

    def __attrs_post_init__(self) -> None:
        if not self.routes:
            raise ValueError("a layout needs at least one layer")
        for group, spec in enumerate(self.groups):
            if self.groups.index(spec) != group:
                raise ValueError(
                    f"groups {self.groups.index(spec)} and {group} are equal: layers of one "
                    "kind form one group"
                )
        self._check_owners()
        self._check_aliases()

    def _check_owners(self) -> None:
        members: list[list[int]] = [[] for _ in self.groups]
        for layer, route in enumerate(self.routes):
            if isinstance(route, Owned):
                if not 0 <= route.group < len(self.groups):
                    raise ValueError(f"layer {layer}: there is no group {route.group}")
                members[route.group].append(route.ordinal)
        for group, ordinals in enumerate(members):
            if not ordinals:
                raise ValueError(f"group {group} has no layer")
            if ordinals != list(range(len(ordinals))):
                raise ValueError(
                    f"group {group}: ordinals must count 0, 1, … in layer order, got {ordinals}"
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
                    "at an owner, never at another alias)"
                )

    @property
    def num_layers(self) -> int:
        """Layers of the model, cached or not."""
        return len(self.routes)

    def num_group_layers(self, group: int) -> int:
        """Layers that own storage in `group`."""
        return sum(isinstance(r, Owned) and r.group == group for r in self.routes)

    def owner(self, layer: int) -> Owned:
        """Return where `layer` keeps its keys and values, through an alias if it is one.

        Raises:
            ValueError: The layer keeps nothing.
        """
        route = self.routes[layer]
        if isinstance(route, Alias):
            route = self.routes[route.anchor]
        if not isinstance(route, Owned):
            raise ValueError(f"layer {layer} has no cache")  # noqa: TRY004  as above
        return route

    def block_bytes(self, group: int, block_size: int, itemsize: int) -> int:
        """Bytes of one block of `group`: all its layers, keys and values."""
        elements = self.groups[group].token_elements() * block_size
        return elements * self.num_group_layers(group) * itemsize


def uniform_layout(spec: FullAttention, num_layers: int) -> CacheLayout:
    """Return the layout of a model whose layers are all alike."""
    return CacheLayout([spec], [Owned(0, i) for i in range(num_layers)])


def group_layers(specs: Sequence[FullAttention]) -> CacheLayout:
    """Return the layout in which layers with equal specs share a group.

    Args:
        specs: One spec a layer, in layer order.
    """
    groups: list[FullAttention] = list(dict.fromkeys(specs))
    counts = [0] * len(groups)
    routes: list[Route] = []
    for spec in specs:
        group = groups.index(spec)
        routes.append(Owned(group, counts[group]))
        counts[group] += 1
    return CacheLayout(groups, routes)
