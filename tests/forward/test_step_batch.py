from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.contract.forward import Segment, StepBatch, Wave
from neve.forward.step_batch import RowInput, build_step_batch

pytestmark = pytest.mark.mlx

decode_rows = st.lists(st.builds(RowInput, st.integers(0, 999), st.just([7])), max_size=4)
slices = st.lists(
    st.builds(
        RowInput,
        st.integers(0, 999),
        st.lists(st.integers(0, 99), min_size=2, max_size=9),
        num_logits=st.integers(0, 2),
    ),
    max_size=3,
)


@settings(deadline=None)
@given(st.tuples(decode_rows, slices).filter(any))
def test_a_batch_is_its_rows_side_by_side(parts: tuple[list[RowInput], list[RowInput]]) -> None:
    """SC-1: ids, positions and segments follow the rows; decode rows come first."""
    rows = [*parts[0], *parts[1]]
    batch = build_step_batch(rows, None)

    assert batch.ids.tolist() == [token for row in rows for token in row.ids]
    assert batch.positions.tolist() == [
        row.position + i for row in rows for i in range(row.length)
    ]
    assert [(s.position, s.length) for s in batch.segments] == [
        (row.position, row.length) for row in rows
    ]
    assert batch.num_decode_rows == len(parts[0])
    ends = [s.start + s.length for s in batch.segments]
    assert [s.start for s in batch.segments] == [0, *ends[:-1]]
    assert batch.logit_rows.tolist() == [
        i for end, row in zip(ends, rows, strict=True) for i in range(end - row.num_logits, end)
    ]


def dtypes(batch: StepBatch) -> set[mx.Dtype]:
    return {batch.ids.dtype, batch.positions.dtype, batch.logit_rows.dtype}


def test_tokens_on_the_device_are_taken_from_the_previous_step() -> None:
    """SC-9: a decode row may be built before its token was read, in any order."""
    sampled = mx.array([10, 11, 12], mx.int32) + 0
    rows = [
        RowInput(5, [], source=2),
        RowInput(9, [], source=0),
        RowInput(3, [8]),
        RowInput(0, [1, 2], num_logits=0),
    ]
    batch = build_step_batch(rows, sampled)

    assert batch.ids.tolist() == [12, 10, 8, 1, 2]
    assert batch.num_decode_rows == 3
    assert batch.segments[1] == Segment(start=1, length=1, position=9)
    assert dtypes(batch) == {mx.int32}


@pytest.mark.parametrize(
    "rows",
    [
        [RowInput(4, [1])],
        [RowInput(0, [1, 2, 3])],
        [RowInput(0, [1, 2, 3], num_logits=0)],
        [RowInput(4, [], source=0)],
    ],
)
def test_every_index_is_int32(rows: list[RowInput]) -> None:
    """SC-1: whatever a step consists of, its arrays have the promised type."""
    assert dtypes(build_step_batch(rows, mx.array([3], mx.int32))) == {mx.int32}


def test_rows_with_drafts_are_waves_of_their_own() -> None:
    """ST-2: rows of equal length form a wave; every position of a draft wants its logits."""
    rows = [
        RowInput(5, [], source=0),
        RowInput(3, [8, 1, 2], num_logits=3),
        RowInput(9, [4, 1, 1], num_logits=3),
        RowInput(0, [1, 2, 3, 4, 5], num_logits=0),
    ]
    batch = build_step_batch(rows, mx.array([7], mx.int32), (Wave(1, 1), Wave(2, 3)))

    assert (batch.num_decode_rows, batch.num_wave_rows) == (1, 3)
    assert batch.positions.tolist() == [5, 3, 4, 5, 9, 10, 11, 0, 1, 2, 3, 4]
    assert batch.logit_rows.tolist() == [0, 1, 2, 3, 4, 5, 6]
    verifying = build_step_batch(rows[1:], None, (Wave(2, 3),))
    assert (verifying.num_decode_rows, verifying.num_wave_rows) == (0, 2)


def test_a_slice_of_one_token_behind_longer_ones_is_a_slice() -> None:
    """SC-1: the last token of a prompt may be a slice of its own, wherever it stands."""
    batch = build_step_batch([RowInput(0, [1, 2]), RowInput(16, [3])], None)

    assert batch.num_decode_rows == 0
    assert batch.segments[1] == Segment(start=2, length=1, position=16)
