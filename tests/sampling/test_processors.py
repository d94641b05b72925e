from collections import Counter

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from neve.sampling import processors

pytestmark = pytest.mark.mlx

Array = npt.NDArray[np.float32]


def row_logits(min_size: int = 1, max_size: int = 12) -> st.SearchStrategy[list[float]]:
    # quarters: ties are frequent, and small sums exact
    quarters = st.integers(-40, 40).map(lambda n: n / 4)
    return st.lists(quarters | st.just(-np.inf), min_size=min_size, max_size=max_size).filter(
        lambda row: max(row) > -np.inf
    )


@st.composite
def wave_logits(draw: st.DrawFn) -> Array:
    width = draw(st.integers(1, 12))
    rows = draw(st.lists(row_logits(width, width), min_size=1, max_size=4))
    return np.array(rows, dtype=np.float32)


def per_row(
    data: st.DataObject, logits: Array, values: st.SearchStrategy[float]
) -> list[float]:
    return data.draw(st.lists(values, min_size=len(logits), max_size=len(logits)))


def floats(values: list[float]) -> mx.array:
    return mx.array(values, dtype=mx.float32)


def survivors(logits: Array, floor: mx.array) -> npt.NDArray[np.bool_]:
    kept = np.array(processors.drop_below(mx.array(logits), floor))
    alive = kept > -np.inf
    np.testing.assert_array_equal(kept[alive], logits[alive])
    return alive


def probabilities(row: Array) -> npt.NDArray[np.float64]:
    weights = np.exp(row.astype(np.float64) - row.max())
    return weights / weights.sum()


def masses_above(row: Array) -> npt.NDArray[np.float64]:
    shares = probabilities(row)
    return np.array([shares[row > value].sum() for value in row])


@settings(deadline=None)
@given(logits=wave_logits(), data=st.data())
def test_top_k(logits: Array, data: st.DataObject):
    """top_k keeps a token if fewer than k are larger; ties of the last one stay with it."""
    width = logits.shape[1]
    top_ks = data.draw(
        st.lists(st.integers(1, width), min_size=len(logits), max_size=len(logits))
    )
    ranked = processors.rank(mx.array(logits), max(top_ks))
    floor = processors.nucleus_floor(ranked, mx.array(top_ks), mx.ones(len(logits)))
    alive = survivors(logits, floor)

    for row, kept, k in zip(logits, alive, top_ks, strict=True):
        larger = np.array([(row > value).sum() for value in row])
        np.testing.assert_array_equal(kept, (larger < k) & (row > -np.inf))


@settings(deadline=None)
@given(logits=wave_logits(), data=st.data())
def test_top_p(logits: Array, data: st.DataObject):
    """top_p keeps a token while the mass above it is less than p, and always the largest."""
    top_ps = per_row(data, logits, st.floats(0.0009765625, 1, width=32) | st.just(1e-45))
    width = logits.shape[1]
    ranked = processors.rank(mx.array(logits), width)
    floor = processors.nucleus_floor(ranked, mx.array([width] * len(logits)), floats(top_ps))
    alive = survivors(logits, floor)

    for row, kept, p in zip(logits, alive, top_ps, strict=True):
        above = masses_above(row)
        assume(p == 1 or np.abs(above - p).min() > 1e-5)
        expected = (above < p) | (row == row.max()) if p < 1 else np.full(width, True)
        np.testing.assert_array_equal(kept, expected & (row > -np.inf))


@settings(deadline=None)
@given(logits=wave_logits(), data=st.data())
def test_top_p_after_top_k(logits: Array, data: st.DataObject):
    """top_p counts its mass among the tokens that top_k kept, however wide the ranking is."""
    width = logits.shape[1]
    top_ks = data.draw(
        st.lists(st.integers(1, width), min_size=len(logits), max_size=len(logits))
    )
    top_ps = per_row(data, logits, st.floats(0.0009765625, 0.96875, width=32))
    narrow = processors.rank(mx.array(logits), max(top_ks))
    wide = processors.rank(mx.array(logits), width)
    floor = processors.nucleus_floor(narrow, mx.array(top_ks), floats(top_ps))

    np.testing.assert_array_equal(
        np.array(floor),
        np.array(processors.nucleus_floor(wide, mx.array(top_ks), floats(top_ps))),
    )
    for row, value, k, p in zip(logits, np.array(floor)[:, 0], top_ks, top_ps, strict=True):
        best = np.sort(row)[::-1][:k]
        before = np.cumsum(probabilities(best)) - probabilities(best)
        assume(np.abs(before - p).min() > 1e-5)

        assert value == best[before < p].min()


@settings(deadline=None)
@given(logits=wave_logits(), data=st.data())
def test_min_p(logits: Array, data: st.DataObject):
    """min_p drops what is less likely than its share of the most likely token; 0 nothing."""
    min_ps = per_row(data, logits, st.just(0.0) | st.floats(0.0009765625, 1, width=32))
    alive = survivors(logits, processors.min_p_floor(mx.array(logits), floats(min_ps)))

    for row, kept, min_p in zip(logits, alive, min_ps, strict=True):
        ratio = np.exp(row.astype(np.float64) - row.max())
        assume(min_p in (0, 1) or np.abs(ratio / min_p - 1).min() > 1e-5)
        np.testing.assert_array_equal(kept, (ratio >= min_p) & (row > -np.inf))


@settings(deadline=None)
@given(logits=wave_logits())
def test_something_survives(logits: Array):
    """The largest logit survives every filter at its strictest, even a top_p of 0."""
    num_rows, width = logits.shape
    ranked = processors.rank(mx.array(logits), width)
    ones = mx.ones(num_rows, dtype=mx.int32)
    floors = [
        processors.nucleus_floor(ranked, ones, mx.ones(num_rows)),
        processors.nucleus_floor(ranked, ones * width, mx.zeros(num_rows)),
        processors.min_p_floor(mx.array(logits), mx.ones(num_rows)),
    ]

    for floor in floors:
        np.testing.assert_array_equal(
            survivors(logits, floor), logits == logits.max(axis=1, keepdims=True)
        )


@settings(deadline=None)
@given(logits=wave_logits(), data=st.data())
def test_temperature(logits: Array, data: st.DataObject):
    """A temperature changes the distribution to softmax(logits / t); 1 changes no bit."""
    temperatures = per_row(data, logits, st.just(1.0) | st.floats(0.125, 100, width=32))
    scaled = np.array(processors.scale(mx.array(logits), floats(temperatures)))

    for row, got, temperature in zip(logits, scaled, temperatures, strict=True):
        if temperature == 1:
            assert got.tobytes() == row.tobytes()
        np.testing.assert_allclose(
            probabilities(got), probabilities(row / np.float64(temperature)), atol=1e-6
        )


@pytest.mark.parametrize("temperature", [1e-9, 1e-38, 1e-44, 1e-300])
def test_tiny_temperature(temperature: float):
    """A temperature next to zero leaves the most likely token alone, and no NaN."""
    scaled = processors.scale(mx.array([[90.0, 1.0, 89.0, -mx.inf]]), floats([temperature]))

    assert np.argmax(np.array(scaled)) == 0
    np.testing.assert_allclose(probabilities(np.array(scaled)[0]), [1, 0, 0, 0])


@settings(deadline=None)
@given(logits=wave_logits(), data=st.data())
def test_penalties(logits: Array, data: st.DataObject):
    """Repetition counts prompt and output, presence and frequency the output alone."""
    width = logits.shape[1]
    texts = st.lists(st.lists(st.integers(0, width - 1)), min_size=len(logits)).map(
        lambda rows: rows[: len(logits)]
    )
    prompts, outputs = data.draw(texts), data.draw(texts)
    repetition = per_row(data, logits, st.sampled_from([0.5, 1.0, 1.25, 2.0]))
    presence = per_row(data, logits, st.sampled_from([-2.0, 0.0, 0.5]))
    frequency = per_row(data, logits, st.sampled_from([-0.25, 0.0, 1.5]))
    counts = [[Counter(row)[v] for v in range(width)] for row in outputs]
    got = processors.penalise(
        mx.array(logits),
        mx.array([[v in row for v in range(width)] for row in prompts]),
        mx.array(counts, dtype=mx.int32),
        repetition=floats(repetition),
        presence=floats(presence),
        frequency=floats(frequency),
    )

    expected = logits.copy()
    for r, row in enumerate(expected):
        for v in {*prompts[r], *outputs[r]}:
            row[v] = row[v] / repetition[r] if row[v] > 0 else row[v] * repetition[r]
        for v in outputs[r]:
            row[v] -= frequency[r]
        for v in set(outputs[r]):
            row[v] -= presence[r]
    np.testing.assert_allclose(np.array(got), expected, rtol=1e-6, atol=1e-6)


def test_neutral_parameters_change_no_bit():
    """A row that asks for nothing passes beside rows that do, bit for bit."""
    logits = np.random.default_rng(0).normal(size=(2, 50)).astype(np.float32)
    logits[0, :3] = [-0.0, -np.inf, 0.0]
    wave = mx.array(logits)
    penalised = processors.penalise(
        wave,
        mx.ones((2, 50), dtype=mx.bool_),
        mx.ones((2, 50), dtype=mx.int32),
        repetition=floats([1, 1.3]),
        presence=floats([0, 1]),
        frequency=floats([0, 1]),
    )
    ranked = processors.rank(wave, 50)
    floor = processors.nucleus_floor(ranked, mx.array([50, 5]), floats([1, 0.5]))
    floor = mx.maximum(floor, processors.min_p_floor(wave, floats([0, 0.1])))
    outputs = [
        penalised,
        processors.scale(wave, floats([1, 0.5])),
        processors.drop_below(wave, floor),
        processors.add_bias(wave, mx.array([1]), mx.array([4]), floats([2.0])),
    ]

    for output in outputs:
        assert np.array(output)[0].tobytes() == logits[0].tobytes()
        assert np.array(output)[1].tobytes() != logits[1].tobytes()


def test_bias():
    """A bias is added to the logit of its row and token, and to nothing else."""
    logits = mx.zeros((2, 3))
    biased = processors.add_bias(
        logits, mx.array([0, 1, 1]), mx.array([2, 0, 2]), floats([5, -100, 1])
    )

    assert biased.tolist() == [[0, 0, 5], [-100, 0, 1]]
    assert logits.tolist() == [[0, 0, 0], [0, 0, 0]]
