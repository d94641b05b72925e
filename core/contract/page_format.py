"""The arrays that a page of a cache group consists of.

One value from which everything that stores pages derives shapes and bytes: the memory plan,
the pools, the objects of the cold tier, and the model's fingerprint.
"""

from __future__ import annotations

import math

import attrs
from attrs import validators

from .dtypes import DTYPE_BYTES

KEYS = "keys"
VALUES = "values"


@attrs.frozen(cache_hash=True)
class Plane:
    """One array of a page, `[heads, S, dim]` for blocks of S tokens.

    Attributes:
        name: Name of the plane, unique in its page, of `a-z`, `0-9` and `_`.
        heads: Heads of a layer.
        dim: Elements of a head.
        dtype: Dtype of the plane whatever the cache's dtype is, a key of `DTYPE_BYTES`; None
            for the cache's dtype.
    """

    name: str = attrs.field(validator=validators.matches_re(r"[a-z0-9_]+"))
    heads: int = attrs.field(validator=validators.ge(1))
    dim: int = attrs.field(validator=validators.ge(1))
    dtype: str | None = attrs.field(
        default=None, validator=validators.optional(validators.in_(DTYPE_BYTES))
    )

    @property
    def token_elements(self) -> int:
        """Elements of one token."""
        return self.heads * self.dim

    def shape(self, block_size: int) -> tuple[int, int, int]:
        """Return the shape in a page of `block_size` tokens."""
        return self.heads, block_size, self.dim

    def num_bytes(self, block_size: int, itemsize: int) -> int:
        """Return the bytes in a page.

        Args:
            block_size: Tokens of the page.
            itemsize: Bytes of an element in the cache's dtype.
        """
        element = itemsize if self.dtype is None else DTYPE_BYTES[self.dtype]
        return math.prod(self.shape(block_size)) * element


@attrs.frozen(cache_hash=True)
class PageFormat:
    """The planes of a page of one layer.

    Attributes:
        planes: The planes, in the order in which pools and files hold them.

    Raises:
        ValueError: There is no plane, or two have one name.
    """

    planes: tuple[Plane, ...] = attrs.field(converter=tuple, validator=validators.min_len(1))

    def __attrs_post_init__(self) -> None:
        names = [plane.name for plane in self.planes]
        if len(set(names)) != len(names):
            raise ValueError(f"planes of one page have names of their own, got {names}")

    @property
    def token_elements(self) -> int:
        """Elements of one token in all planes."""
        return sum(plane.token_elements for plane in self.planes)

    def num_bytes(self, block_size: int, itemsize: int) -> int:
        """Return the bytes of a page.

        Args:
            block_size: Tokens of the page.
            itemsize: Bytes of an element in the cache's dtype.
        """
        return sum(plane.num_bytes(block_size, itemsize) for plane in self.planes)

    @property
    def plain(self) -> tuple[int, int, int] | None:
        """Heads, elements of a key and elements of a value, for a page of nothing else.

        None for a page with other planes, with dtypes of their own, or with unequal heads:
        three numbers do not describe such a page.
        """
        if [plane.name for plane in self.planes] != [KEYS, VALUES]:
            return None
        keys, values = self.planes
        if keys.heads != values.heads or keys.dtype is not None or values.dtype is not None:
            return None
        return keys.heads, keys.dim, values.dim


def keys_and_values(kv_heads: int, head_dim: int, value_dim: int | None = None) -> PageFormat:
    """Return the format of pages of keys `[Hk, S, D]` and values `[Hk, S, Dv]`.

    Args:
        kv_heads: Key and value heads of a layer, `Hk`.
        head_dim: Elements of a key, `D`.
        value_dim: Elements of a value, `Dv`; None means `head_dim`.
    """
    width = head_dim if value_dim is None else value_dim
    return PageFormat((Plane(KEYS, kv_heads, head_dim), Plane(VALUES, kv_heads, width)))
