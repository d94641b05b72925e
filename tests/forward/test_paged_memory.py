from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import pytest

from neve.contract.cache_spec import CacheLayout, FullAttention, Owned
from neve.contract.forward import Scoring
from neve.forward.step_batch import RowInput, build_step_batch

pytestmark = pytest.mark.mlx

MIB = 1 << 20
LAYOUT = CacheLayout([FullAttention(4, 128)], [Owned(0, i) for i in range(2)])


@pytest.fixture
def lane(lanes: Mapping[str, Callable[..., Any]]) -> Any:
    """A paged lane over a pool of 64 MiB: four arrays of 16."""
    return lanes["paged"](LAYOUT, num_blocks=512, garbage=False)


def build(lane: Any, position: int, length: int, token: mx.array | None) -> mx.array:
    """Build a step of two sequences over both layers; the next token depends on all of it."""
    ids = [] if token is not None else [1] * length
    rows = [RowInput(position, ids, None if token is None else i) for i in range(2)]
    batch = build_step_batch(rows, token)
    context = lane.context(batch, "ab")
    x = mx.ones((2 * length, 4, 128)) * batch.ids[:, None, None]
    for layer in range(LAYOUT.num_layers):
        x = context.attend(layer, x, x, x, scoring=Scoring(0.1))
    last = mx.array([s.start + s.length - 1 for s in batch.segments])
    return (x[last, 0, 0] > 0).astype(mx.int32)


def start(lane: Any, token: mx.array) -> None:
    mx.async_eval(token, *[a for pool in lane.pools for a in pool.arrays()])


def test_steps_in_flight_never_copy_the_pool(lane: Any) -> None:
    """KV-5: build the next step, wait for this one, start the next: the pool stays in place."""
    pool_bytes = sum(pool.num_bytes for pool in lane.pools)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    token = build(lane, 0, 40, None)
    start(lane, token)
    for position in range(40, 45):
        following = build(lane, position, 1, token)
        mx.synchronize()
        start(lane, following)
        token = following
    mx.synchronize()

    assert token.tolist() == [1, 1]
    assert pool_bytes == 64 * MIB
    assert mx.get_peak_memory() - before < 4 * MIB


def test_a_second_name_would_be_seen(lane: Any) -> None:
    """KV-5: the measure is sharp: a view of one array costs a copy of it, and shows."""
    view = lane.pools[0].arrays()[0][:1]
    mx.eval(view)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    start(lane, build(lane, 0, 4, None))
    mx.synchronize()

    assert view.shape == (1, 4, 16, 128)
    assert mx.get_peak_memory() - before >= 16 * MIB
