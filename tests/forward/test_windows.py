"""Windows on both paths: what is seen, what is read, and how far positions may go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neve.contract.cache_spec import CacheLayout, FullAttention, SlidingWindow, layer_routes
from neve.contract.forward import Scoring
from neve.forward.decode_buckets import DecodeWave
from neve.forward.flat_context import FlatContext
from neve.forward.paged_step import PagedStep
from neve.forward.step_batch import RowInput, build_step_batch
from neve.pools.device_tables import DeviceTables
from neve.pools.flat_cache import FlatCache
from neve.pools.layer_pool import LayerPool

pytestmark = pytest.mark.mlx

ATOL = 2e-5
W = 11  # the longer window of the layout `windows`, in blocks of 4

Lanes = Mapping[str, Callable[..., Any]]
Run = Callable[..., dict[str, mx.array]]


def prompt(name: str, length: int) -> list[int]:
    return [(ord(name) * 7 + i * i * 3 + i) % 50 for i in range(length)]


def cut(tokens: Sequence[int], chunk: int) -> list[Sequence[int]]:
    return [tokens[i : i + chunk] for i in range(0, len(tokens), chunk)]


def assert_close(actual: dict[str, mx.array], expected: dict[str, mx.array]) -> None:
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], atol=ATOL, err_msg=name)


# -- against attention as the contract reads ---------------------------------------------


@pytest.mark.parametrize("kind", ["flat", "paged"])
@pytest.mark.parametrize("name", ["windows", "windows alone"])
@pytest.mark.parametrize("length", [W - 1, W, W + 1, 2 * W + 3])
def test_any_slices_around_a_window_are_naive_attention(
    kind: str,
    name: str,
    length: int,
    layouts: Mapping[str, CacheLayout],
    lanes: Lanes,
    run: Run,
    run_naive: Run,
    make_model: Callable[..., Any],
    make_part: Callable[..., Any],
) -> None:
    """GR-3: slices of 1, 7, w and w+5 tokens, then decoding, see just the window."""
    layout, tokens = layouts[name], prompt("a", length + 3)
    model, more = make_model(layout), {} if kind == "flat" else {"block_size": 4}
    expected = run_naive(model, {"a": tokens})

    for chunk in (1, 7, W, W + 5):
        parts = [*cut(tokens[:length], chunk), *cut(tokens[length:], 1)]
        actual = run(model, lanes[kind](layout, **more), [[make_part("a", p)] for p in parts])
        assert_close(actual, expected)


schedules = st.lists(
    st.dictionaries(
        st.sampled_from("abc"),
        st.sampled_from([1, 1, 1, 2, 7, W, W + 5]),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=5,
)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    schedule=schedules,
    name=st.sampled_from(["windows", "windows alone"]),
    size=st.sampled_from([4, 16]),
    seed=st.integers(0, 99),
)
def test_any_schedule_is_naive_attention(
    schedule: list[dict[str, int]],
    name: str,
    size: int,
    seed: int,
    layouts: Mapping[str, CacheLayout],
    lanes: Lanes,
    run: Run,
    make_model: Callable[..., Any],
    make_part: Callable[..., Any],
) -> None:
    """GR-3: decode rows and slices of several sequences, aliases, softcap, reused blocks."""
    ends: dict[str, int] = {}
    steps: list[list[Any]] = []
    for lengths in schedule:
        steps.append(
            [make_part(n, prompt(n, 90)[ends.get(n, 0) :][:k]) for n, k in lengths.items()]
        )
        for n, k in lengths.items():
            ends[n] = ends.get(n, 0) + k
    layout = layouts[name]
    model = make_model(layout)
    whole = [[make_part(n, prompt(n, 90)[:end])] for n, end in ends.items()]
    expected = run(model, lanes["naive"](layout), whole)

    paged = lanes["paged"](layout, block_size=size, num_blocks=80, seed=seed)
    assert_close(run(model, paged, steps), expected)
    assert_close(run(model, lanes["flat"](layout), steps), expected)


def test_a_window_that_is_never_full_is_full_attention(
    lanes: Lanes,
    run: Run,
    make_model: Callable[..., Any],
    make_part: Callable[..., Any],
) -> None:
    """GR-3: up to its length a window changes no bit."""
    tokens = prompt("a", 20)
    outputs: list[mx.array] = []
    for spec in (FullAttention(2, 8), SlidingWindow(20, 2, 8)):
        layout = layer_routes([spec, spec])
        steps = [[make_part("a", part)] for part in cut(tokens, 7)]
        outputs.append(run(make_model(layout), lanes["paged"](layout), steps)["a"])

    assert mx.array_equal(outputs[0], outputs[1])


# -- what is read ------------------------------------------------------------------------


class CountingPool(LayerPool):
    """Notes how many blocks each gather reads."""

    gathered: list[int]

    def gather(self, ordinal: int, pages: mx.array) -> tuple[mx.array, mx.array]:
        self.gathered.append(pages.shape[0] * pages.shape[2])
        return super().gather(ordinal, pages)


@pytest.mark.parametrize("window", [1, 15, 16, 17, 64])
def test_decoding_reads_a_windows_blocks_however_long_the_context_is(window: int) -> None:
    """GR-3: the table of a decode wave is as wide as a window, not as the context."""
    spec = SlidingWindow(window, 1, 8)
    most = -(-window // 16) + 1
    for position in (0, 5, 16, 100, 1000, 100_000, 10_000_000):
        (bucket,) = DecodeWave.of([position], 16, spec).buckets

        assert bucket.num_blocks <= most
        assert bucket.mask.shape == (1, 1, 1, 1, bucket.num_blocks * 16)
        assert (bucket.mask == 0).sum().item() == min(position + 1, window)


def test_rows_of_any_length_share_a_bucket_once_they_fill_the_window() -> None:
    """PK-2: beyond the window no row is padded for another one's length."""
    wave = DecodeWave.of([100, 100_000, 500, 12_345], 16, SlidingWindow(64, 1, 8))

    assert [bucket.rows.tolist() for bucket in wave.buckets] == [[0, 1, 2, 3]]
    assert wave.restore is None
    assert wave.buckets[0].num_blocks == 5


@pytest.mark.parametrize("length", [1, 5])
def test_a_step_gathers_its_window(length: int) -> None:
    """GR-3: neither a decode row nor a slice reads blocks that it does not see."""
    spec, size, position = SlidingWindow(9, 1, 8), 4, 400
    pool = CountingPool(spec, 1, 120, size, mx.float32)
    pool.gathered = []
    tables = DeviceTables(1, 110)
    tables.update((0, index, index) for index in range(110))
    batch = build_step_batch([RowInput(position, [1] * length)], None)
    context = PagedStep(layer_routes([spec]), [pool], [tables], size, [0]).context(batch)
    x = mx.ones((length, 1, 8))
    mx.eval(context.attend(0, x, x, x, scoring=Scoring(1.0)))

    first, last = (position - 8) // size, (position + length - 1) // size
    assert pool.gathered == [last + 1 - first]


def test_null_entries_are_never_seen(
    layouts: Mapping[str, CacheLayout],
    lanes: Lanes,
    run: Run,
    make_model: Callable[..., Any],
    make_part: Callable[..., Any],
) -> None:
    """GR-3: what lies in the null block and in blocks handed on changes no bit."""
    layout, tokens = layouts["windows"], prompt("a", 60)
    model, results = make_model(layout), list[mx.array]()
    steps = [[make_part("a", part)] for part in (*cut(tokens[:50], 7), *cut(tokens[50:], 1))]
    for garbage in (False, True):
        lane = lanes["paged"](layout, block_size=4, num_blocks=24, garbage=garbage)
        results.append(run(model, lane, steps)["a"])
        for group in layout.windows:
            most = -(-(layout.groups[group].window - 1 + 7) // 4) + 1  # type: ignore[attr-defined]
            assert lane.num_held("a", group) <= most

    assert mx.array_equal(results[0], results[1])


# -- far out -----------------------------------------------------------------------------

FAR = [32_760, 32_768, 65_530, 65_536, 70_001]
"""Around the ends of 16 bits, with and without a sign."""


def far_rows(position: int, window: int, length: int) -> tuple[mx.array, mx.array, mx.array]:
    """Return a query, and keys and values of the last `window - 1 + length` positions."""
    count = min(window - 1, position) + length
    keys = [
        mx.random.normal(s, key=mx.random.key(position + i))
        for i, s in enumerate([(length, 1, 8), (count, 1, 8), (count, 1, 8)])
    ]
    return keys[0], keys[1], keys[2]


def naive(q: mx.array, k: mx.array, v: mx.array, window: int) -> np.ndarray:
    """Attend queries `[L, 1, D]`, the last one at the last key, in float64."""
    queries, keys, values = (np.array(x, np.float64)[:, 0] for x in (q, k, v))
    rows: list[np.ndarray] = []
    for i, query in enumerate(queries):
        end = len(keys) - len(queries) + i + 1
        seen = slice(max(0, end - window), end)
        scores = np.exp(keys[seen] @ query * 0.3)
        rows.append(scores @ values[seen] / scores.sum())
    return np.stack(rows)[:, None]


@pytest.mark.parametrize("position", FAR)
@pytest.mark.parametrize("length", [1, 20])
def test_far_positions_see_their_window(position: int, length: int) -> None:
    """GR-3: masks and tables are exact beyond 32,768 and 65,536 positions."""
    window, size = 37, 16
    spec = SlidingWindow(window, 1, 8)
    q, k, v = far_rows(position, window, length)
    first, end = position - window + 1, position + length
    blocks = range(first // size, (end - 1) // size + 1)
    tables = DeviceTables(1, blocks.stop + 3)
    tables.update((0, index, 1 + i) for i, index in enumerate(blocks))
    pool = LayerPool(spec, 1, len(blocks) + 1, size, mx.float32)
    before = mx.arange(first, position)
    slots = pool.slots(1 + before // size - blocks.start, before % size)
    pool.write(0, k[:-length], v[:-length], slots)
    batch = build_step_batch([RowInput(position, [1] * length)], None)
    context = PagedStep(layer_routes([spec]), [pool], [tables], size, [0]).context(batch)

    out = context.attend(0, q, k[-length:], v[-length:], Scoring(0.3))

    np.testing.assert_allclose(out, naive(q, k, v, window), atol=1e-5)


@pytest.mark.parametrize("position", [32_768, 65_536])
def test_full_and_windowed_layers_agree_far_out_with_the_flat_path(position: int) -> None:
    """KV-10: a long text's next slice and token are the same on both paths, in both groups."""
    layout = layer_routes([FullAttention(1, 8), SlidingWindow(40, 1, 8)])
    size, length, total = 256, 3, position + 4
    num_blocks = -(-total // size)
    pools = [LayerPool(spec, 1, num_blocks + 1, size, mx.float32) for spec in layout.groups]
    tables = [DeviceTables(1, num_blocks) for _ in layout.groups]
    cache = FlatCache()
    q, k, v = (mx.random.normal((total, 1, 8), key=mx.random.key(i)) for i in range(3))
    places = mx.arange(position)
    for group, (pool, table) in enumerate(zip(pools, tables, strict=True)):
        table.update((0, index, index + 1) for index in range(num_blocks))
        slots = pool.slots(1 + places // size, places % size)
        pool.write(0, k[:position], v[:position], slots)
        spec = layout.groups[group]
        if isinstance(spec, SlidingWindow):
            cache.window((group, 0), spec).write(k[:position], v[:position], 0)
        else:
            cache.write((group, 0), k[:position], v[:position], 0)

    for start, count in ((position, length), (position + length, 1)):
        batch = build_step_batch([RowInput(start, [1] * count)], None)
        paged = PagedStep(layout, pools, tables, size, [0]).context(batch)
        flat = FlatContext(layout, [cache], batch)
        new = slice(start, start + count)
        for layer in range(2):
            a, b = (
                c.attend(layer, q[new], k[new], v[new], Scoring(0.3)) for c in (paged, flat)
            )
            np.testing.assert_allclose(a, b, atol=1e-5)
            expected = naive(q[new], k[: new.stop], v[: new.stop], [total, 40][layer])
            np.testing.assert_allclose(a, expected, atol=1e-5)
