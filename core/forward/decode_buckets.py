"""Buckets of decode rows with similar context lengths."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import mlx.core as mx

from ..contract.layer_spec import AttentionSpec


def similar_lengths(num_blocks: Sequence[int]) -> list[list[int]]:
    """Partition rows so that no row is padded to more than twice its length.

    A bucket attends through one rectangular table. In a single bucket, every short row would
    gather as many blocks as the longest row.

    Args:
        num_blocks: Blocks of each row's context.

    Returns:
        Lists of row indices, the longest rows first; about log2(longest / shortest) lists.
    """
    buckets: list[list[int]] = []
    longest = 0
    for row in sorted(range(len(num_blocks)), key=lambda i: -num_blocks[i]):
        if not buckets or 2 * num_blocks[row] < longest:
            buckets.append([])
            longest = num_blocks[row]
        buckets[-1].append(row)
    return buckets


@attrs.frozen(eq=False)
class DecodeBucket:
    """Decode rows that share one table and one mask.

    Attributes:
        rows: Indices of the rows among the step's decode rows, `[n]` int32.
        first: First visible block of each row, `[n]` int32; None if all rows see block 0.
        num_blocks: Width of the bucket's table in blocks.
        mask: 0 for visible keys and -inf elsewhere, `[n, 1, 1, 1, num_blocks * S]`.
    """

    rows: mx.array
    first: mx.array | None
    num_blocks: int
    mask: mx.array


@attrs.frozen(eq=False)
class DecodeWave:
    """The buckets of a step's decode rows, for layers with the same mask.

    Attributes:
        buckets: The buckets.
        restore: Permutation `[N]` from bucket order to the step's order; None for a single
            bucket, which keeps the step's order.
    """

    buckets: tuple[DecodeBucket, ...]
    restore: mx.array | None

    @classmethod
    def of(
        cls, positions: Sequence[int], block_size: int, spec: AttentionSpec | None = None
    ) -> DecodeWave:
        """Partition decode rows.

        Args:
            positions: Absolute position of each row's token.
            block_size: Tokens of a block.
            spec: The layers' specification; None: every position is visible.
        """
        rows = [_Row.of(position, block_size, spec) for position in positions]
        partition = similar_lengths([row.num_blocks for row in rows])
        if len(partition) == 1:
            partition = [list(range(len(rows)))]
        buckets = tuple(
            _bucket(part, [rows[row] for row in part], block_size) for part in partition
        )
        if len(partition) < 2:
            return cls(buckets, None)
        order = [row for part in partition for row in part]
        restore = sorted(range(len(order)), key=order.__getitem__)
        return cls(buckets, mx.array(restore, mx.int32))


@attrs.frozen
class _Row:
    """The visible positions of one decode row.

    Attributes:
        oldest: The first visible position.
        newest: The last visible position, which is the row's token.
        first_block: The block of `oldest`.
        num_blocks: Blocks from `first_block` to the block of `newest`.
    """

    oldest: int
    newest: int
    first_block: int
    num_blocks: int

    @classmethod
    def of(cls, position: int, block_size: int, spec: AttentionSpec | None) -> _Row:
        oldest = 0 if spec is None else spec.first_visible(position)
        first = oldest // block_size
        return cls(oldest, position, first, position // block_size + 1 - first)


def _bucket(indices: list[int], rows: list[_Row], block_size: int) -> DecodeBucket:
    num_blocks = max(row.num_blocks for row in rows)
    keys = mx.arange(num_blocks * block_size)[None]
    newest = mx.array([row.newest for row in rows], mx.int32)[:, None]
    if all(row.oldest == 0 for row in rows):
        first, visible = None, keys <= newest
    else:
        first = mx.array([row.first_block for row in rows], mx.int32)
        oldest = mx.array([row.oldest for row in rows], mx.int32)[:, None]
        positions = keys + first[:, None] * block_size
        visible = (positions <= newest) & (positions >= oldest)
    mask = mx.where(visible, 0.0, -mx.inf)[:, None, None, None]
    return DecodeBucket(mx.array(indices, mx.int32), first, num_blocks, mask)
