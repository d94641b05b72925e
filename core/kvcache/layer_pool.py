"""The arrays of one group: K and V pages of every physical layer."""

from __future__ import annotations

import mlx.core as mx

from ..contract.cache_spec import FullAttention
from ..metal.attention import gather_pages, scatter_tokens


class LayerPool:
    """Pages `[B, Hk, S, D]`, K and V apart, one pair a layer.

    Differences from what you may know: layers are never stacked into one array, since an
    update of one layer would copy all; an array is never indexed by a Python int and never
    held under a second name while it is updated, since either makes the next write a copy.
    Owned by the engine thread.

    Attributes:
        generation: Rises at each growth; whoever kept a reference to an array must drop it.
    """

    def __init__(
        self,
        spec: FullAttention,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        dtype: mx.Dtype,
    ) -> None:
        self.generation = 0
        self._num_blocks = num_blocks
        self._num_layers = num_layers
        self._dtype = dtype
        self._key_shape = (spec.kv_heads, block_size, spec.head_dim)
        self._value_shape = (spec.kv_heads, block_size, spec.value_dim)
        self.clear()

    def clear(self) -> None:
        """Replace every array by zeros.

        Not by garbage: a masked slot still enters a product, with weight 0.
        """
        self._keys = self._zeros(self._key_shape)
        self._values = self._zeros(self._value_shape)
        mx.eval(self._keys, self._values)

    def _zeros(self, shape: tuple[int, ...]) -> list[mx.array]:
        full = (self._num_blocks, *shape)
        return [mx.zeros(full, self._dtype) for _ in range(self._num_layers)]

    @property
    def num_blocks(self) -> int:
        """Blocks, the null block included."""
        return self._num_blocks

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(a.nbytes for a in (*self._keys, *self._values))

    def arrays(self) -> list[mx.array]:
        """Return the arrays as they are now, to be evaluated with a step; do not keep them."""
        return [*self._keys, *self._values]

    def write(
        self, ordinal: int, k: mx.array, v: mx.array, blocks: mx.array, offsets: mx.array
    ) -> None:
        """Write keys `[T, Hk, D]` and values `[T, Hk, Dv]` to their slots, in place.

        Args:
            ordinal: The layer's place in the group.
            k: Keys.
            v: Values.
            blocks: Block of each token `[T]`, int32.
            offsets: Offset of each token in its block `[T]`, int32.
        """
        scatter_tokens(self._keys[ordinal], blocks, offsets, k)
        scatter_tokens(self._values[ordinal], blocks, offsets, v)

    def gather(self, ordinal: int, tables: mx.array) -> tuple[mx.array, mx.array]:
        """Return keys `[N, Hk, M*S, D]` and values of the blocks in `tables [N, M]`."""
        return (
            gather_pages(self._keys[ordinal], tables),
            gather_pages(self._values[ordinal], tables),
        )

    def read_block(self, block_id: int) -> list[tuple[mx.array, mx.array]]:
        """Return one block of every layer, `([Hk, S, D], [Hk, S, Dv])`, in one evaluation."""
        at = mx.array([block_id])
        pages = [(k[at][0], v[at][0]) for k, v in zip(self._keys, self._values, strict=True)]
        mx.eval(pages)
        return pages

    def grow(self, num_blocks: int) -> None:
        """Enlarge every array to `num_blocks`; contents stay at their block ids.

        Array by array, so that the peak is the old pool, the new one and nothing else.

        Raises:
            ValueError: The new size is not larger.
        """
        added = num_blocks - self._num_blocks
        if added < 1:
            raise ValueError(f"{num_blocks} blocks are not more than {self._num_blocks}")
        for arrays in (self._keys, self._values):
            for i, old in enumerate(arrays):
                tail = mx.zeros((added, *old.shape[1:]), old.dtype)
                arrays[i] = mx.concatenate([old, tail])
                mx.eval(arrays[i])
        self._num_blocks = num_blocks
        self.generation += 1
