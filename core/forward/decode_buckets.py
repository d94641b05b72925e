"""Decode rows of similar length, attended together."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import mlx.core as mx

from ..contract.layer_spec import AttentionSpec


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
        first: First block that each of them sees, `[n]` int32; None if all see block 0.
        num_blocks: Width of their table.
        mask: 0 for visible keys and -inf elsewhere, `[n, 1, 1, 1, num_blocks * S]`.
    """

    rows: mx.array
    first: mx.array | None
    num_blocks: int
    mask: mx.array


@attrs.frozen(eq=False)
class DecodeWave:
    """The decode rows of a step, as layers with one kind of mask see them.

    Attributes:
        buckets: The rows, partitioned.
        restore: Order that undoes the partition, `[N]`; None for a single bucket, which
            keeps the step's order.
    """

    buckets: tuple[DecodeBucket, ...]
    restore: mx.array | None

    @classmethod
    def of(
        cls, positions: Sequence[int], block_size: int, spec: AttentionSpec | None = None
    ) -> DecodeWave:
        """Partition rows whose one token is at each of `positions`.

        Args:
            positions: Absolute positions.
            block_size: Tokens of a block.
            spec: What the layers see; None means everything.
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
    """What one decode row sees.

    Attributes:
        oldest: Its first visible position.
        newest: Its last one, where its token is.
        first_block: The block of the first one.
        num_blocks: Blocks from there on.
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
