"""The arrays of one group: K and V pages of every physical layer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ..contract.layer_spec import AttentionSpec
from ..metal.attention.mlx_attention import gather_rows, page_rows, scatter_rows, token_rows
from ..metal.attention.pages import GroupPages


class LayerPool:
    """Pages `[B, Hk, S, D]`, K and V apart, one pair a layer.

    Differences from what you may know: layers are never stacked into one array, since an
    update of one layer would copy all; an array is never indexed by a Python int and never
    held under a second name while it is updated, since either makes the next write a copy.
    Owned by the engine thread.

    Attributes:
        generation: Rises at each growth; references to older arrays must be dropped.
        group: The arrays. A step whose kernels write to pages replaces the write fence.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        dtype: mx.Dtype,
    ) -> None:
        self.generation = 0
        self._num_blocks = num_blocks
        self._num_layers = num_layers
        self._dtype = dtype
        self._plain_dtype = np.uint16 if dtype.size == 2 else np.uint32
        planes = spec.page_format.planes
        self._heads, self._block_size = planes[0].heads, block_size
        self._shapes = [plane.shape(block_size) for plane in planes]
        # kept between restores: memory that is touched for the first time costs as much again
        self._staging = np.empty((0, 0), self._plain_dtype)
        self.clear()

    def clear(self) -> None:
        """Replace every array by zeros.

        Not by garbage: a masked slot still enters a product, with weight 0.
        """
        fence = mx.zeros((1,), mx.int32)
        keys, values = (self._zeros(shape) for shape in self._shapes)
        self.group = GroupPages(keys, values, fence)
        mx.eval(self.arrays())

    def _zeros(self, shape: tuple[int, ...]) -> list[mx.array]:
        full = (self._num_blocks, *shape)
        return [mx.zeros(full, self._dtype) for _ in range(self._num_layers)]

    @property
    def dtype(self) -> mx.Dtype:
        """Of keys and values."""
        return self._dtype

    @property
    def num_blocks(self) -> int:
        """Blocks, the null block included."""
        return self._num_blocks

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(a.nbytes for a in self._by_layer())

    def arrays(self) -> list[mx.array]:
        """Return the arrays as they are now, to be evaluated with a step; do not keep them."""
        return [*self.group.keys, *self.group.values, self.group.fence]

    def slots(self, blocks: mx.array, offsets: mx.array) -> mx.array:
        """Return where tokens are written, for `write`; for all layers.

        Args:
            blocks: Block of each token `[T]`, int32.
            offsets: Offset of each token in its block `[T]`, int32.
        """
        return token_rows(blocks, offsets, self._heads, self._block_size)

    def pages(self, tables: mx.array) -> mx.array:
        """Return where the blocks of `tables [N, M]` lie, for `gather`; for all layers."""
        return page_rows(tables, self._heads)

    def write(self, ordinal: int, k: mx.array, v: mx.array, slots: mx.array) -> None:
        """Write keys `[T, Hk, D]` and values `[T, Hk, Dv]` to their slots, in place.

        Args:
            ordinal: The layer's place in the group.
            k: Keys.
            v: Values.
            slots: What `slots` returned for the tokens.
        """
        scatter_rows(self.group.keys[ordinal], slots, k)
        scatter_rows(self.group.values[ordinal], slots, v)

    def gather(self, ordinal: int, pages: mx.array) -> tuple[mx.array, mx.array]:
        """Return keys `[N, Hk, M*S, D]` and values of blocks.

        Args:
            ordinal: The layer's place in the group.
            pages: What `pages` returned for the blocks' tables.
        """
        keys, values = self.group.keys[ordinal], self.group.values[ordinal]
        return gather_rows(keys, pages), gather_rows(values, pages)

    def read_blocks(self, block_ids: Sequence[int]) -> list[list[memoryview]]:
        """Return the bytes of blocks, in one evaluation: per block, keys and values by layer.

        Keys of a layer are `[Hk, S, D]`, values `[Hk, S, Dv]`, row-major, in the pool's dtype.
        The bytes are copies and may go to other threads.
        """
        self.group.settle()
        runs = _runs(block_ids)
        # slices, since a gather of pages takes several times as long on a CPU
        slices = [[_plain(array[a:b]) for a, b in runs] for array in self._by_layer()]
        mx.eval(slices)
        pages = [[page for part in parts for page in _bytes_of(part)] for parts in slices]
        return [[page[i] for page in pages] for i in range(len(block_ids))]

    def write_blocks(self, block_ids: Sequence[int], blocks: Sequence[memoryview]) -> None:
        """Write the bytes of blocks, lazily and in place; they are copied before this returns.

        Args:
            block_ids: Where to.
            blocks: What `read_blocks` returned for each, joined.
        """
        pages, runs = self._pages_of(blocks), _runs(block_ids)
        for array, page in zip(self._by_layer(), pages, strict=True):
            done = 0
            for begin, end in runs:
                array[begin:end] = page[done : done + end - begin]
                done += end - begin

    def _pages_of(self, blocks: Sequence[memoryview]) -> list[mx.array]:
        """Return keys and values of blocks `[B, Hk, S, D]`, layer by layer.

        One large copy on the host, during which other threads may run, and one to the device;
        layers are taken out of it as a step is computed.
        """
        rows = [np.frombuffer(block, self._plain_dtype) for block in blocks]
        if self._staging.shape[0] < len(blocks):
            self._staging = np.empty((len(blocks), rows[0].size), self._plain_dtype)
        staged = np.stack(rows, out=self._staging[: len(blocks)])
        pages = mx.array(staged).view(self._dtype)
        shapes = self._shapes * self._num_layers
        ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))
        parts = mx.split(pages, ends[:-1], axis=1)
        return [part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]

    def _by_layer(self) -> list[mx.array]:
        """Return keys and values of each layer in turn; do not keep them."""
        pairs = zip(self.group.keys, self.group.values, strict=True)
        return [array for pair in pairs for array in pair]

    def grow(self, num_blocks: int) -> None:
        """Enlarge every array to `num_blocks`; contents stay at their block ids.

        Array by array, so that the peak is the old pool, the new one and nothing else.

        Raises:
            ValueError: The new size is not larger.
        """
        added = num_blocks - self._num_blocks
        if added < 1:
            raise ValueError(f"{num_blocks} blocks are not more than {self._num_blocks}")
        self.group.settle()
        for arrays in (self.group.keys, self.group.values):
            for i, old in enumerate(arrays):
                tail = mx.zeros((added, *old.shape[1:]), old.dtype)
                arrays[i] = mx.concatenate([old, tail])
                mx.eval(arrays[i])
        self._num_blocks = num_blocks
        self.generation += 1


def _runs(block_ids: Sequence[int]) -> list[tuple[int, int]]:
    """Return the half-open runs of consecutive ids that a list consists of, in its order."""
    runs: list[tuple[int, int]] = []
    for block_id in block_ids:
        if runs and runs[-1][1] == block_id:
            runs[-1] = (runs[-1][0], block_id + 1)
        else:
            runs.append((block_id, block_id + 1))
    return runs


def _plain(array: mx.array) -> mx.array:
    """Return an array's bits as numbers that every buffer protocol knows."""
    return array.view(mx.uint16 if array.itemsize == 2 else mx.uint32)


def _bytes_of(array: mx.array) -> list[memoryview]:
    """Return the bytes of each row of an evaluated array, copied."""
    data = memoryview(np.array(array).data).cast("B")
    size = data.nbytes // array.shape[0]
    return [data[i * size : (i + 1) * size] for i in range(array.shape[0])]
