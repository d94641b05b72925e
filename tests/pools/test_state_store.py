from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

from neve.contract.cache_spec import RecurrentState, StateTensor
from neve.contract.wave import Wave
from neve.errors import CacheMisuseError
from neve.forward.step_batch import RowInput, build_step_batch
from neve.ids import SequenceId
from neve.pools.state_store import (
    StateRows,
    StateStack,
    StateStore,
    state_bytes,
    state_of_bytes,
)

pytestmark = pytest.mark.mlx

SPEC = RecurrentState([StateTensor("s", (256,))])
ROW_BYTES = 256 * 4


_ids = itertools.count()


class Owner:
    """Stands for a sequence; `position` is where its next step begins."""

    def __init__(self) -> None:
        self.id = SequenceId(next(_ids))
        self.position = 0


def begin(
    store: StateStore, owners: Sequence[Owner], length: int = 1, *, verify: bool = False
) -> list[StateRows]:
    rows = [RowInput(o.position, [1] * length) for o in owners]
    waves = (Wave(len(rows), length),) if verify else None
    batch = build_step_batch(rows, None, waves)
    calls = store.begin(batch, [owner.id for owner in owners])
    for owner in owners:
        owner.position += length
    return calls


def advance(store: StateStore, owners: Sequence[Owner], length: int = 1) -> list[mx.array]:
    """Add 1 to each state, and return the states before that."""
    before: list[mx.array] = []
    for rows in begin(store, owners, length):
        (state,) = rows.read(0, SPEC, mx.float32)
        before.append(state)
        rows.write(0, [(state + 1,)])
    mx.eval(store.arrays())
    return before


def verify(store: StateStore, owners: Sequence[Owner], length: int) -> None:
    """Add 1 to each state for each of `length` tokens, and keep the state after each."""
    (rows,) = begin(store, owners, length, verify=True)
    (state,) = rows.read(0, SPEC, mx.float32)
    rows.write(0, [(state + 1 + i,) for i in range(length)])
    mx.eval(store.arrays())


def counts(states: Sequence[mx.array]) -> list[Any]:
    """Return the first element of each row."""
    return [row.item() for state in states for row in state[:, 0]]


def test_a_state_ends_with_its_sequence() -> None:
    """GR-5: nothing is kept of a sequence that was released."""
    store, one, other = StateStore(), Owner(), Owner()
    advance(store, [one, other])

    assert (store.num_rows, store.num_bytes) == (2, 2 * ROW_BYTES)
    store.release(one.id)
    assert store.num_rows == 1
    store.release(other.id)
    store.release(other.id)  # harmless
    assert (store.num_rows, store.num_bytes, store.arrays()) == (0, 0, [])


def test_rows_keep_their_states_through_joins_and_leaves() -> None:
    """GR-5: whoever joins, leaves, waits or comes back, a row has its own state."""
    store = StateStore()
    a, b, c = owners = [Owner() for _ in range(3)]
    waves = [[a, b], [a, b, c], [c, a], [b, c], [c, b, a], [a], [a, b, c]]
    for wave in waves:
        expected = [float(o.position) for o in wave]

        assert counts(advance(store, wave)) == expected
    assert [o.position for o in owners] == [6, 5, 5]


def test_a_row_that_sits_out_keeps_no_other_alive() -> None:
    """GR-5: what is held is the states of live sequences, not of whoever they ran with."""
    store = StateStore()
    owners = [Owner() for _ in range(8)]
    advance(store, owners)
    waiting = owners.pop()
    advance(store, owners)
    assert store.num_bytes == (8 + 7) * ROW_BYTES  # not copied yet: most who leave have ended

    advance(store, owners)
    assert store.num_bytes == (7 + 1) * ROW_BYTES
    assert counts(advance(store, [waiting])) == [1.0]


def test_a_sequence_at_position_zero_begins_with_zeros() -> None:
    """GR-5: freshness is the position, never what was left behind."""
    store, owner = StateStore(), Owner()
    advance(store, [owner], length=3)
    owner.position = 0

    assert counts(advance(store, [owner])) == [0.0]


def test_an_unknown_sequence_may_not_go_on() -> None:
    """GR-5: without a state there is no way into the middle of a sequence."""
    store, known, unknown = StateStore(), Owner(), Owner()
    advance(store, [known])
    unknown.position = 16
    with pytest.raises(CacheMisuseError, match="position 16: the sequence has no state"):
        begin(store, [known, unknown])

    assert counts(advance(store, [known])) == [1.0]


def test_a_cleared_store_knows_nobody() -> None:
    """GR-5: after a failed step no state is used again."""
    store, owner = StateStore(), Owner()
    advance(store, [owner])
    store.clear()

    assert store.num_rows == 0
    with pytest.raises(CacheMisuseError, match="no state"):
        begin(store, [owner])


def test_a_layer_that_one_step_left_out_is_refused() -> None:
    """GR-5: a state that misses tokens is not used."""
    store, owner = StateStore(), Owner()
    begin(store, [owner])
    (rows,) = begin(store, [owner])

    with pytest.raises(CacheMisuseError, match="layer 0: the step before did not scan it"):
        rows.read(0, SPEC, mx.float32)


def test_long_decoding_holds_no_history() -> None:
    """GR-5: old stacks go; memory does not grow with the number of steps."""
    store = StateStore()
    owners = [Owner() for _ in range(4)]
    advance(store, owners)
    mx.synchronize()
    before = mx.get_active_memory()
    for _ in range(50):
        advance(store, owners)

    assert mx.get_active_memory() - before <= 8 * ROW_BYTES


# -- states that outlive a step ----------------------------------------------------------


def value(stack: StateStack) -> Any:
    return stack.layers[0][0][:, 0].tolist()


def test_a_snapshot_is_the_state_after_the_step_that_was_built_last() -> None:
    """GR-5: a snapshot is a handle on what that step computes, and stays as it is."""
    store, a, b = StateStore(), Owner(), Owner()
    advance(store, [a, b])
    advance(store, [b])
    kept = [store.snapshot(a.id), store.snapshot(b.id)]
    for _ in range(3):
        advance(store, [a, b])

    assert [value(stack) for stack in kept] == [[1.0], [2.0]]


def test_a_snapshot_of_one_row_keeps_no_other_alive() -> None:
    """GR-5: a snapshot takes the bytes of one state, whatever the wave's width."""
    store = StateStore()
    owners = [Owner() for _ in range(8)]
    advance(store, owners)
    kept = store.snapshot(owners[3].id)

    assert kept.num_rows == 1
    assert sum(t.nbytes for t in kept.arrays()) == ROW_BYTES


def test_a_sequence_goes_on_from_an_installed_state() -> None:
    """GR-5: whoever takes a kept state over computes what its first owner did."""
    store, first, second = StateStore(), Owner(), Owner()
    advance(store, [first], length=3)
    kept = store.snapshot(first.id)
    second.position = first.position
    store.install(second.id, second.position, kept)

    assert counts(advance(store, [first, second])) == [1.0, 1.0]
    assert value(kept) == [1.0]


def test_a_state_is_installed_for_one_position() -> None:
    """GR-5: a state that is off by one token is refused, and nothing is changed."""
    store, owner, other = StateStore(), Owner(), Owner()
    advance(store, [owner], length=3)
    store.install(other.id, 3, store.snapshot(owner.id))
    other.position = 4

    with pytest.raises(CacheMisuseError, match="has the state of position 3"):
        begin(store, [other])
    other.position = 3
    assert counts(advance(store, [other])) == [1.0]


# -- rows that verify drafts ---------------------------------------------------------------


@pytest.mark.parametrize("rejected", range(4))
def test_a_row_is_rewound_to_any_of_its_tokens(rejected: int) -> None:
    """ST-3, SP-1: the state after each token of a verified row is kept; others stay put."""
    store, row, peer = StateStore(), Owner(), Owner()
    advance(store, [row, peer], length=2)
    verify(store, [row, peer], 4)
    row.position -= rejected
    store.rewind(row.id, row.position)

    assert counts(advance(store, [row, peer])) == [1.0 + 4 - rejected, 5.0]


def test_a_state_that_no_step_kept_is_no_target_of_a_rewind() -> None:
    """ST-3: plain steps keep the newest state alone, and a rewound row cannot go forth."""
    store, row = StateStore(), Owner()
    advance(store, [row], length=3)
    with pytest.raises(CacheMisuseError, match=r"rewind sequence \d+ to position 2"):
        store.rewind(row.id, 2)
    store.rewind(row.id, 3)
    store.rewind(row.id, 9)  # nothing was computed behind it
    verify(store, [row], 3)
    store.rewind(row.id, 4)
    with pytest.raises(CacheMisuseError, match="rewind"):
        store.rewind(row.id, 3)
    row.position = 4

    assert counts(advance(store, [row])) == [2.0]


def test_kept_positions_go_with_the_next_step_or_the_sequence() -> None:
    """ST-3: a trail lives for one step."""
    store, row, peer = StateStore(), Owner(), Owner()
    verify(store, [row, peer], 3)
    assert store.num_bytes == 3 * 2 * ROW_BYTES
    advance(store, [row, peer])
    assert store.num_bytes == 2 * ROW_BYTES
    verify(store, [row], 3)
    store.release(row.id)
    assert store.num_bytes == 2 * ROW_BYTES  # the stack of the row that sits out


MIXED = RecurrentState([StateTensor("a", (3, 5)), StateTensor("b", (7,), "float32")])


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_bytes_bring_a_state_back_bit_by_bit(dtype: mx.Dtype) -> None:
    """SD-3: every tensor keeps its dtype, its shape and its place, NaN and -0 included."""
    stack = StateStack(1)
    for layer in (5, 2):
        odd = mx.array([float("nan"), -0.0, float("inf")])
        a = mx.random.normal((1, 3, 5)).astype(dtype)
        a[0, :, 0] = odd.astype(dtype)
        stack.layers[layer] = (a, mx.random.normal((1, 7)))
    pieces = state_bytes(stack)
    back = state_of_bytes(pieces, [2, 5], MIXED, dtype)

    assert [p.nbytes for p in pieces] == [15 * dtype.size, 28] * 2
    assert [(t.shape, t.dtype) for t in back.arrays()] == [
        ((1, 3, 5), dtype),
        ((1, 7), mx.float32),
    ] * 2
    assert list(map(bytes, state_bytes(back))) == list(map(bytes, pieces))


def test_bytes_are_a_copy() -> None:
    """CT-6: the writer's bytes outlive the state that they were taken of."""
    store, owner = StateStore(), Owner()
    advance(store, [owner])
    pieces = state_bytes(store.snapshot(owner.id))
    before = [bytes(piece) for piece in pieces]
    for _ in range(3):
        advance(store, [owner])
    store.clear()

    assert [bytes(piece) for piece in pieces] == before
