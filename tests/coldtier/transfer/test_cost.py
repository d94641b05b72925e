from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.coldtier.transfer.cost import MIN_SPILL_BLOCKS, CostModel, Rate

OVERHEAD_US = 2000

counts = st.integers(1, 1000)
micros = st.integers(1, 10**7)


def make_cost(restore=None, prefill=None, block_bytes=1) -> CostModel:
    """Return a model that has measured `(units, microseconds)` of both sides, or nothing."""
    cost = CostModel(block_bytes)
    if restore is not None:
        cost.restore.record(*restore)
    if prefill is not None:
        cost.prefill.record(*prefill)
    return cost


def test_nothing_is_predicted_before_a_measurement():
    """SC-4: without telemetry of a side there is no prediction of it."""
    cost = make_cost()

    assert (cost.restore_us(10), cost.recompute_us(10)) == (None, None)
    assert Rate().us_per_unit is None


@given(blocks=counts, size=counts, restored=counts, us=micros)
def test_predicted_restore(blocks, size, restored, us):
    """SC-4: ceil(blocks * bytes_per_block * restore_us / restore_bytes) + 2000."""
    cost = make_cost(restore=(restored, us), block_bytes=size)
    exact = math.ceil(blocks * size * us / restored) + OVERHEAD_US

    assert cost.restore_us(blocks) == pytest.approx(exact, abs=1)


@given(tokens=counts, prefilled=counts, us=micros)
def test_predicted_recompute(tokens, prefilled, us):
    """SC-4: ceil(prefix_tokens * prefill_us / prefill_tokens)."""
    cost = make_cost(prefill=(prefilled, us))

    assert cost.recompute_us(tokens) == pytest.approx(math.ceil(tokens * us / prefilled), abs=1)


@pytest.mark.parametrize(
    ("num_blocks", "restore_us", "recompute_us", "pays"),
    [
        (64, 10_000, 12_501, True),
        (64, 10_000, 12_500, False),  # 5 * restore == 4 * recompute
        (64, 10_000, 10_000, False),
        (63, 10_000, 10**6, False),
        (65, 10_000, 10**6, True),
    ],
)
def test_spill_needs_a_long_prefix_and_a_margin(num_blocks, restore_us, recompute_us, pays):
    """SC-4: spill at 64 blocks or more and only if 5 * restore < 4 * recompute."""
    cost = make_cost((num_blocks, restore_us - OVERHEAD_US), (1, recompute_us))

    assert (cost.restore_us(num_blocks), cost.recompute_us(1)) == (restore_us, recompute_us)
    assert cost.spill_pays(num_blocks, 1) is pays


@pytest.mark.parametrize(
    ("restore", "prefill"), [(None, None), ((1, 1), None), (None, (1, 10**9))]
)
def test_spill_needs_both_measurements(restore, prefill):
    """SC-4: without telemetry of both sides a preempted turn recomputes."""
    assert not make_cost(restore, prefill).spill_pays(1000, 16_000)


@given(blocks=st.integers(1, 200), restore=st.tuples(counts, micros), us=micros)
def test_spill_is_the_rule_and_nothing_else(blocks, restore, us):
    """SC-4: the choice follows from the predictions and changes none of them."""
    cost = make_cost(restore, (1, us))
    r, c = cost.restore_us(blocks), cost.recompute_us(1)
    assert r is not None
    assert c is not None

    assert cost.spill_pays(blocks, 1) == (blocks >= MIN_SPILL_BLOCKS and 5 * r < 4 * c)
    assert (cost.restore_us(blocks), cost.recompute_us(1)) == (r, c)


@pytest.mark.parametrize(
    ("restore", "prefill"), [(None, None), ((1, 10**9), None), (None, (1, 1))]
)
def test_restore_is_tried_until_both_are_measured(restore, prefill):
    """CT-1: only measurements speak against a restore."""
    assert make_cost(restore, prefill).restore_pays(10, 160)


@pytest.mark.parametrize(("recompute_us", "pays"), [(5001, True), (5000, False), (4, False)])
def test_restore_must_be_the_faster_one(recompute_us, pays):
    """CT-1: what takes as long to read as to compute is computed."""
    assert make_cost((1, 3000), (1, recompute_us)).restore_pays(1, 1) is pays


def test_declines_fade():
    """CT-1: one slow read does not close the tier for good."""
    cost = make_cost((1, 10**8), (1, 10_000))
    predictions = [cost.restore_us(1)]
    for _ in range(200):
        if cost.restore_pays(1, 1):
            break
        predictions.append(cost.restore_us(1))

    assert 1 < len(predictions) < 200
    assert predictions == sorted(predictions, key=lambda us: -(us or 0))


def test_a_restore_that_pays_changes_no_prediction():
    """CT-1: only a decline fades."""
    cost = make_cost((1, 1000), (1, 10_000))
    before = cost.restore_us(3)

    assert cost.restore_pays(1, 1)
    assert cost.restore_us(3) == before


def test_late_measurements_count_most():
    """SC-4: a rate follows what was measured lately."""
    rate = Rate()
    for _ in range(50):
        rate.record(10, 1000)
    for _ in range(20):
        rate.record(10, 10)

    assert rate.us_per_unit is not None
    assert 1 < rate.us_per_unit < 3


@given(st.lists(st.tuples(counts, micros), min_size=1, max_size=20))
def test_rate_lies_among_its_measurements(measurements):
    """SC-4: a rate is a mean: never beyond the fastest or the slowest."""
    rate = Rate()
    for units, us in measurements:
        rate.record(units, us)
    rates = [us / units for units, us in measurements]
    assert rate.us_per_unit is not None

    assert min(rates) * 0.999 <= rate.us_per_unit <= max(rates) * 1.001


def test_a_sidecar_counts_on_both_sides():
    """SC-4: a restore that reads a large sidecar is predicted, and measured, with its bytes."""
    cost = make_cost((10, 1000.0), (160, 1_000_000.0))
    state_bytes = 90 * cost.block_bytes

    assert cost.restore_us(10, state_bytes) == cost.restore_us(100)
    assert cost.restore_pays(10, 160)
    dear = make_cost((10, 1000.0), (160, 5000.0))
    assert not dear.restore_pays(10, 160, state_bytes)
