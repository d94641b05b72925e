"""The pages of a layer, and the copy of a sequence out of its pages."""

from __future__ import annotations

import functools

import attrs
import mlx.core as mx

from ..runtime import dispatch, launch
from ..runtime.launch import Kernel, Launch, ints
from .mlx_attention import gather_rows, page_rows

FLOATS = (mx.float32, mx.float16, mx.bfloat16)
"""Dtypes of keys and values that kernels support."""

_KERNEL = Kernel(
    "page_gather",
    ("keys", "values", "tables", "row", "ip", "prev"),
    ("out_keys", "out_values"),
)


@attrs.frozen
class Layout:
    """The shape of a page.

    Attributes:
        heads: Key heads.
        size: Tokens of a page.
        dims: Elements of a key.
        v_dims: Elements of a value.
    """

    heads: int
    size: int
    dims: int
    v_dims: int


@attrs.frozen(eq=False)
class Pages:
    """Pools of one layer, `B` pages of `S` tokens. Page 0 is the null page, without content.

    Kernels write to pages in place, and MLX does not know of these writes. The write fence
    orders the writes: each write takes the current fence and returns the next one, and each
    read takes the current fence.

    Attributes:
        keys: `[B, Hk, S, D]`.
        values: `[B, Hk, S, Dv]`, in the dtype of the keys.
        fence: `[1]` int32, returned by the last write to pools of the layer's group.
    """

    keys: mx.array
    values: mx.array
    fence: mx.array

    def settle(self) -> None:
        """Wait for writes of kernels before MLX operations read: they take no write fence."""
        if launch.builds_graphs():
            mx.eval(self.fence)

    @property
    def size(self) -> int:
        """Tokens of a page."""
        return self.keys.shape[2]

    @property
    def layout(self) -> Layout:
        """The shape of a page."""
        _, heads, size, dims = self.keys.shape
        return Layout(heads, size, dims, self.values.shape[-1])


@attrs.define(eq=False)
class GroupPages:
    """The pages of a group of layers.

    Attributes:
        keys: Key pool of each layer, `[B, Hk, S, D]`.
        values: Value pool of each layer, `[B, Hk, S, Dv]`.
        fence: The write fence returned by the last write to any layer. A step writes to its
            layers in order, so one chain of fences orders all writes.
    """

    keys: list[mx.array]
    values: list[mx.array]
    fence: mx.array

    def settle(self) -> None:
        """Wait for writes of kernels, as `Pages.settle` does."""
        if launch.builds_graphs():
            mx.eval(self.fence)

    def layer(self, ordinal: int) -> Pages:
        """Return the pages of a layer after the last write."""
        return Pages(self.keys[ordinal], self.values[ordinal], self.fence)


def gather_pages_reference(
    pages: Pages, tables: mx.array, row: mx.array, *, first_block: int, num_keys: int
) -> tuple[mx.array, mx.array]:
    """Compute `gather_pages` in MLX operations."""
    end = first_block + -(-num_keys // pages.size)
    entries = tables[row, first_block:end]
    rows = page_rows(mx.maximum(entries, 0), pages.keys.shape[1])
    held = mx.repeat(entries[0] > 0, pages.size)[None, :num_keys, None]
    keys, values = (
        mx.where(held, gather_rows(pool, rows)[0, :, :num_keys], mx.array(0, pool.dtype))
        for pool in (pages.keys, pages.values)
    )
    return keys, values


def gather_pages_kernel(
    pages: Pages, tables: mx.array, row: mx.array, *, first_block: int, num_keys: int
) -> tuple[mx.array, mx.array]:
    """Compute `gather_pages` in one launch."""
    _, heads, size, dims = pages.keys.shape
    v_dims, dtype = pages.values.shape[-1], pages.keys.dtype
    launch = Launch(
        template={"T": dtype, "D": dims, "DV": v_dims, "S": size, "HK": heads},
        grid=(num_keys * (max(dims, v_dims) // 8), heads, 1),
        threadgroup=(256, 1, 1),
        outputs=[((heads, num_keys, dims), dtype), ((heads, num_keys, v_dims), dtype)],
    )
    # shared by all layers of a step
    where = ints(tables.shape[1], first_block, num_keys)
    inputs = (pages.keys, pages.values, tables, row, where, pages.fence)
    keys, values = _KERNEL(*inputs, launch=launch)
    return keys, values


def gather_pages(
    pages: Pages, tables: mx.array, row: mx.array, *, first_block: int, num_keys: int
) -> tuple[mx.array, mx.array]:
    """Return the keys and values of a sequence, contiguous.

    Args:
        pages: The layer's pools.
        tables: Pages of all sequences, `[R, W]` int32. Tokens of entries of 0 or less are
            zeros.
        row: Row of `tables` of the sequence, `[1]` int32.
        first_block: Index of the first entry that is read.
        num_keys: Tokens from there on, `K`; all their entries are valid.

    Returns:
        `[Hk, K, D]` and `[Hk, K, Dv]`.
    """
    layout = pages.layout
    taken = dispatch.takes_kernel(
        "gather_pages",
        (pages.keys.dtype, layout),
        functools.partial(_check, pages.keys.dtype, layout),
        unsupported=_unsupported(pages),
    )
    if not taken:
        pages.settle()
    gather = gather_pages_kernel if taken else gather_pages_reference
    return gather(pages, tables, row, first_block=first_block, num_keys=num_keys)


def _unsupported(pages: Pages) -> str | None:
    if pages.keys.dtype not in FLOATS or pages.values.dtype != pages.keys.dtype:
        return f"no kernel for {pages.keys.dtype} keys with {pages.values.dtype} values"
    for pool in (pages.keys, pages.values):
        if pool.shape[-1] % 8:
            return f"{pool.shape[-1]} elements a head are not a multiple of 8"
    return None


def _check(dtype: mx.Dtype, layout: Layout, seed: int = 1) -> None:
    pages = random_pages(dtype, 6, layout, seed)
    tables = mx.array([[1, 2, 3, 1], [4, 0, 5, 2]], mx.int32)
    row, num_keys = mx.array([1], mx.int32), 2 * layout.size + 1
    got = gather_pages_kernel(pages, tables, row, first_block=1, num_keys=num_keys)
    want = gather_pages_reference(pages, tables, row, first_block=1, num_keys=num_keys)
    dispatch.compare(got, want)


def random_pages(dtype: mx.Dtype, num_pages: int, layout: Layout, seed: int = 1) -> Pages:
    """Return pages of random content for self-checks."""
    shape = (num_pages, layout.heads, layout.size)
    first, second = mx.random.split(mx.random.key(seed))
    keys = mx.random.normal((*shape, layout.dims), key=first)
    values = mx.random.normal((*shape, layout.v_dims), key=second)
    return Pages(keys.astype(dtype), values.astype(dtype), fence=mx.zeros(1, mx.int32))


def _probe(
    dtype: mx.Dtype, heads: int, size: int, dims: int, v_dims: int, seed: int = 1
) -> None:
    _check(dtype, Layout(heads, size, dims, v_dims), seed)


dispatch.register("gather_pages", _probe, [(2, 4, 32, 32), (1, 16, 64, 16)])
