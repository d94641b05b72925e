"""Decode rows of similar length, attended together."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import mlx.core as mx


def similar_lengths(num_blocks: Sequence[int]) -> list[list[int]]:
    """Partition rows so that none is padded to more than twice its length.

    A wave attends through one rectangular table, so without this a single long row would
    make every short one gather as many blocks as it has.

    Args:
        num_blocks: Blocks that each row's context takes.

    Returns:
        Row indices, the longest rows first; at most about log2(longest / shortest) lists.
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
        rows: Their indices among the step's decode rows, `[n]` int32.
        num_blocks: Width of their table.
        mask: 0 for visible keys and -inf elsewhere, `[n, 1, 1, 1, num_blocks * S]`.
    """

    rows: mx.array
    num_blocks: int
    mask: mx.array


@attrs.frozen(eq=False)
class DecodeWave:
    """The decode rows of a step.

    Attributes:
        buckets: The rows, partitioned.
        restore: Order that undoes the partition, `[N]`; None for a single bucket, which
            keeps the step's order.
    """

    buckets: tuple[DecodeBucket, ...]
    restore: mx.array | None

    @classmethod
    def of(cls, positions: Sequence[int], block_size: int) -> DecodeWave:
        """Partition rows whose one token is at each of `positions`."""
        num_blocks = [position // block_size + 1 for position in positions]
        partition = similar_lengths(num_blocks)
        if len(partition) == 1:
            partition = [list(range(len(positions)))]
        buckets = tuple(
            _bucket(rows, positions, max(num_blocks[row] for row in rows), block_size)
            for rows in partition
        )
        if len(partition) < 2:
            return cls(buckets, None)
        order = [row for rows in partition for row in rows]
        restore = sorted(range(len(order)), key=order.__getitem__)
        return cls(buckets, mx.array(restore, mx.int32))


def _bucket(
    rows: list[int], positions: Sequence[int], num_blocks: int, block_size: int
) -> DecodeBucket:
    last = mx.array([positions[row] for row in rows], mx.int32)
    visible = mx.arange(num_blocks * block_size)[None] <= last[:, None]
    mask = mx.where(visible, 0.0, -mx.inf)[:, None, None, None]
    return DecodeBucket(mx.array(rows, mx.int32), num_blocks, mask)
