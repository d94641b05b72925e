"""Which storage a call of `attend` means."""

from __future__ import annotations

from ..contract.cache_spec import CacheLayout, Owned
from ..errors import CacheMisuseError


def storage_of(
    layout: CacheLayout, layer: int, brings_keys: bool, brings_values: bool
) -> Owned:
    """Return where `layer` keeps its keys and values, if what it brings fits its route.

    An alias that brought keys of its own would overwrite its anchor's, unseen.

    Raises:
        CacheMisuseError: An owner without keys and values, or an alias with some.
        ValueError: The layer keeps nothing.
    """
    owner = layout.owner(layer)
    owns = layout.routes[layer] is owner
    if brings_keys != owns or brings_values != owns:
        state = "an owner needs k and v" if owns else "an alias takes k and v from its anchor"
        raise CacheMisuseError(f"attend in layer {layer}", state)
    return owner
