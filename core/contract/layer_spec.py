"""The cache of one layer, per kind of layer.

Attention keeps keys and values of every position, or of a window of the newest positions.
A recurrent layer keeps a state of fixed size that sums up all positions so far.
"""

from __future__ import annotations

import math

import attrs
from attrs import validators

from .dtypes import DTYPE_BYTES as DTYPE_BYTES
from .page_format import PageFormat, keys_and_values


def _value_dim(spec: AttentionSpec) -> int:
    return spec.head_dim if spec.v_head_dim is None else spec.v_head_dim


class AttentionSpec:
    """Layers that keep keys and values.

    Attributes:
        kv_heads: Key and value heads of a layer.
        head_dim: Width of a key, in elements.
        v_head_dim: Width of a value as declared; None means `head_dim`.
        value_dim: Width of a value, in elements.
    """

    __slots__ = ()

    kv_heads: int
    head_dim: int
    v_head_dim: int | None
    value_dim: int

    @property
    def visible_tokens(self) -> int | None:
        """Positions that a token sees, its own included; None for all of them."""
        return None

    @property
    def page_format(self) -> PageFormat:
        """The arrays that a page of one layer consists of."""
        return keys_and_values(self.kv_heads, self.head_dim, self.value_dim)

    def token_elements(self) -> int:
        """Elements that one token takes in one layer, all planes of a page together."""
        return self.page_format.token_elements

    def first_visible(self, position: int) -> int:
        """Return the first position that a token at `position` sees."""
        return 0


@attrs.frozen
class FullAttention(AttentionSpec):
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


@attrs.frozen
class SlidingWindow(AttentionSpec):
    """Layers in which a token sees the newest positions only.

    Attributes:
        window: Positions that a token sees, its own included.
        kv_heads: Key and value heads of a layer.
        head_dim: Width of a key, in elements.
        v_head_dim: Width of a value as declared; None means `head_dim`.
        value_dim: Width of a value, in elements.
    """

    window: int = attrs.field(validator=validators.ge(1))
    kv_heads: int = attrs.field(validator=validators.ge(1))
    head_dim: int = attrs.field(validator=validators.ge(1))
    v_head_dim: int | None = attrs.field(
        default=None, validator=validators.optional(validators.ge(1)), eq=False
    )
    value_dim: int = attrs.field(
        init=False, repr=False, default=attrs.Factory(_value_dim, takes_self=True)
    )

    @property
    def visible_tokens(self) -> int:
        """Positions that a token sees, its own included."""
        return self.window

    def first_visible(self, position: int) -> int:
        """Return the first position that a token at `position` sees."""
        return max(0, position - self.window + 1)

    def rows_at(self, boundary: int) -> int:
        """Return the positions whose keys and values a prefix of `boundary` tokens keeps.

        The contiguous, the paged and the stored form of a window all follow this rule.
        """
        return min(boundary, self.window)


@attrs.frozen
class StateTensor:
    """One array of a recurrent state.

    Attributes:
        name: Name of the array, e.g. `conv`.
        shape: Shape for one sequence, without an axis for rows.
        dtype: Dtype that does not follow the compute dtype, e.g. `float32`; None means the
            compute dtype.
    """

    name: str = attrs.field(validator=validators.min_len(1))
    shape: tuple[int, ...] = attrs.field(
        converter=tuple,
        validator=[validators.min_len(1), validators.deep_iterable(validators.ge(1))],
    )
    dtype: str | None = attrs.field(
        default=None, validator=validators.optional(validators.in_(DTYPE_BYTES))
    )

    def num_bytes(self, itemsize: int) -> int:
        """Bytes for one sequence, with a compute dtype of `itemsize` bytes."""
        return math.prod(self.shape) * (DTYPE_BYTES[self.dtype] if self.dtype else itemsize)


@attrs.frozen
class RecurrentState:
    """Layers that keep a state of fixed size, the sum of all positions so far.

    Attributes:
        tensors: Arrays of the state, in the order of a scan's arguments; all zeros
            before the first token.

    Raises:
        ValueError: There is no tensor, or two tensors share a name.
    """

    tensors: tuple[StateTensor, ...] = attrs.field(
        converter=tuple, validator=validators.min_len(1)
    )

    def __attrs_post_init__(self) -> None:
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) != len(names):
            raise ValueError(f"tensors of one state have names of their own, got {names}")

    def num_bytes(self, itemsize: int) -> int:
        """Bytes of one layer for one sequence."""
        return sum(tensor.num_bytes(itemsize) for tensor in self.tensors)
