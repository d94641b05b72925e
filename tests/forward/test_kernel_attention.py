"""Attention by kernels, run on the host, against the naive context and the other paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neve.contract.cache_spec import (
    Alias,
    CacheLayout,
    FullAttention,
    SlidingWindow,
    layer_routes,
)
from neve.contract.forward import Scoring
from neve.errors import CacheMisuseError
from neve.forward.kernel_attention import SHORTEST, longest_context
from neve.forward.step_batch import RowInput, build_step_batch
from neve.metal.runtime import dispatch, launch
from neve.metal.runtime.launch import Kernel, Launch
from neve.testing.kernels import emulator
from neve.testing.kernels.emulator import HostBackend

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(emulator.compiler() is None, reason="no g++: kernels cannot run here"),
]

ATOL = 3e-5
LENGTH = 36
WINDOW = 11

Lanes = Mapping[str, Callable[..., Any]]
Run = Callable[..., dict[str, mx.array]]
Make = Callable[..., Any]

LAYOUTS: Mapping[str, CacheLayout] = {
    "aliases": layer_routes(
        [
            FullAttention(2, 32),
            SlidingWindow(WINDOW, 2, 32),
            Alias(0),
            Alias(1),
            None,
            FullAttention(2, 32),
        ]
    ),
    "small heads": layer_routes([FullAttention(4, 16), SlidingWindow(5, 1, 16, 24)]),
}


@pytest.fixture(autouse=True)
def _host() -> Iterator[None]:
    with launch.using(HostBackend(orders=(0,))):
        yield


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> CacheLayout:
    """Layouts whose heads kernels take, in turn."""
    return LAYOUTS[request.param]


def prompt(name: str, length: int) -> list[int]:
    return [(ord(name) * 7 + i * i * 3 + i) % 50 for i in range(length)]


def schedule(make_part: Make, words: Sequence[str]) -> tuple[list[list[Any]], dict[str, int]]:
    """Return steps of parts such as `a20 b1`, and how far each sequence gets."""
    ends: dict[str, int] = {}
    steps: list[list[Any]] = []
    for step in words:
        parts: list[Any] = []
        for word in step.split():
            name, begin = word[0], ends.get(word[0], 0)
            ends[name] = begin + int(word[1:])
            parts.append(make_part(name, prompt(name, ends[name])[begin:]))
        steps.append(parts)
    return steps, ends


def assert_close(actual: dict[str, mx.array], expected: dict[str, mx.array]) -> None:
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], atol=ATOL, err_msg=name)


def counted(operation: str) -> dict[str, int]:
    """Return how often each variant of an operation was dispatched so far."""
    return {
        name.partition(":")[2]: times
        for name, times in dispatch.counts().items()
        if name.partition(":")[0] == operation
    }


MIXED = ["a20", "a1 b18", "a1 b9 c1", "c1 a1 b2", "b1 c1", "a1 b1 c20", "c1"]


@pytest.mark.parametrize("chunk", [1, 3, 16, 17, LENGTH])
def test_any_chunking_is_naive_attention(
    chunk: int,
    layout: CacheLayout,
    lanes: Lanes,
    run: Run,
    run_naive: Run,
    make_model: Make,
    make_part: Make,
) -> None:
    """KV-10, PK-1: however a prompt is cut, kernels compute what the contract says."""
    model, tokens = make_model(layout), prompt("a", LENGTH)
    cuts = range(0, LENGTH, chunk)
    steps = [[make_part("a", tokens[i : i + chunk])] for i in cuts]

    assert_close(run(model, lanes["paged"](layout), steps), run_naive(model, {"a": tokens}))


def test_a_mixed_batch_is_its_sequences_alone(
    layout: CacheLayout,
    lanes: Lanes,
    run: Run,
    run_naive: Run,
    make_model: Make,
    make_part: Make,
) -> None:
    """SC-1, PK-1: decode rows and slices share a step's launches and see only their own."""
    model = make_model(layout)
    steps, ends = schedule(make_part, MIXED)

    actual = run(model, lanes["paged"](layout), steps)

    assert_close(actual, run_naive(model, {name: prompt(name, ends[name]) for name in ends}))


@pytest.mark.parametrize("projected", [False, True])
def test_sinks_reach_kernels(
    projected: bool,
    layout: CacheLayout,
    lanes: Lanes,
    run: Run,
    make_model: Make,
    make_part: Make,
) -> None:
    """PK-1: kernels weigh sinks in decode rows, short slices and long ones."""
    model = make_model(layout, projected=projected, sinks=mx.array([-1.0, 0.0, 1.0, 2.0]))
    steps, _ = schedule(make_part, ["a20", "a1 b5", "a1 b1", "b18"])

    actual = run(model, lanes["paged"](layout), steps)

    assert_close(actual, run(model, lanes["naive"](layout), steps))


@pytest.mark.parametrize("name", LAYOUTS)
def test_projections_are_rope_and_attend(
    name: str, lanes: Lanes, run: Run, make_model: Make, make_part: Make
) -> None:
    """FW-2, PK-1: heads that the kernel makes are those that a family would make itself."""
    layout = LAYOUTS[name]
    steps, _ = schedule(make_part, MIXED)
    before = counted("prepare_heads")
    plain = run(make_model(layout), lanes["paged"](layout), steps)
    made = run(make_model(layout, projected=True), lanes["paged"](layout), steps)
    naive = run(make_model(layout, projected=True), lanes["naive"](layout), steps)

    assert_close(made, plain)
    assert_close(made, naive)
    # 8 elements are too few for the kernel to rotate: there heads are made by operations
    by_operations = counted("prepare_heads").get("ops", 0) - before.get("ops", 0)
    assert (by_operations > 0) == (name == "small heads")
    assert counted("prepare_heads")["host"] > before.get("host", 0)


steps_of_words = st.lists(
    st.dictionaries(
        st.sampled_from("abc"), st.sampled_from([1, 1, 2, 3, 5, 18]), min_size=1, max_size=3
    ),
    min_size=1,
    max_size=5,
)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lengths=steps_of_words,
    name=st.sampled_from(sorted(LAYOUTS)),
    projected=st.booleans(),
    seed=st.integers(0, 99),
)
def test_kernels_agree_with_the_flat_path(
    lengths: list[dict[str, int]],
    name: str,
    projected: bool,
    seed: int,
    lanes: Lanes,
    run: Run,
    make_model: Make,
    make_part: Make,
) -> None:
    """KV-10, PK-1: for any schedule and order of blocks, in a littered pool."""
    words = [" ".join(f"{n}{k}" for n, k in step.items()) for step in lengths]
    steps, _ = schedule(make_part, words)
    layout = LAYOUTS[name]
    model = make_model(layout, projected=projected)

    paged = lanes["paged"](layout, seed=seed)

    assert_close(run(model, paged, steps), run(model, lanes["flat"](layout), steps))


@pytest.mark.parametrize("name", LAYOUTS)
def test_leftovers_change_no_bit(
    name: str, lanes: Lanes, run: Run, make_model: Make, make_part: Make
) -> None:
    """KV-2: what others left in blocks and tables is never seen, wherever the blocks lie."""
    layout = LAYOUTS[name]
    model = make_model(layout)
    steps, _ = schedule(make_part, ["a17", "a1 b5", "a1 b1", "a3 b17", "a1 b1"])

    clean = run(model, lanes["paged"](layout, garbage=False), steps)
    littered = run(model, lanes["paged"](layout, garbage=True, seed=1), steps)

    for sequence in clean:
        assert mx.array_equal(clean[sequence], littered[sequence])


def test_a_window_gives_its_blocks_back(
    lanes: Lanes, run: Run, run_naive: Run, make_model: Make, make_part: Make
) -> None:
    """KV-10, PK-1: null blocks before the window are passed over, others take the pages."""
    layout = LAYOUTS["aliases"]
    model, lane = make_model(layout), lanes["paged"](layout, num_blocks=7)
    steps, ends = schedule(make_part, ["a17 b3", "a15 b1", *["a1 b1"] * 5, "a18", "a1 b1"])

    actual = run(model, lane, steps)

    assert (lane.num_held("a", 0), lane.num_held("a", 1)) == (4, 2)
    assert_close(actual, run_naive(model, {n: prompt(n, ends[n]) for n in ends}))


def test_long_contexts_are_split(
    lanes: Lanes, run: Run, make_model: Make, make_part: Make
) -> None:
    """PK-1: rows of very different lengths in one step, long ones in several splits."""
    layout = LAYOUTS["aliases"]
    model = make_model(layout)
    steps, ends = schedule(
        make_part, [f"a{SHORTEST + 80} b3", "a1 b1 c1", "a9 b1 c2", "c1 a1 b1"]
    )
    paged = lanes["paged"](layout, num_blocks=2 * SHORTEST // 16)
    watched = Watched()
    with launch.using(watched):
        actual = run(model, paged, steps)

    assert ends["a"] > SHORTEST
    assert "paged_combine" in watched.kernels
    assert_close(actual, run(model, lanes["flat"](layout), steps))


def test_rows_of_one_token_are_one_launch_a_layer(
    lanes: Lanes, run: Run, make_model: Make, make_part: Make
) -> None:
    """PK-1: heads are made by the launch that attends with them, but not beside a slice."""
    layout = LAYOUTS["aliases"]
    model, paged = make_model(layout, projected=True), lanes["paged"](layout)
    run(model, paged, [[make_part(name, prompt(name, 3))] for name in "ab"])
    ones = [make_part(name, prompt(name, 4)[3:]) for name in "ab"]
    decoded, mixed = Watched(), Watched()
    with launch.using(decoded):
        run(model, paged, [ones])
    with launch.using(mixed):
        run(model, paged, [[make_part("a", prompt("a", 5)[4:]), make_part("c", [1, 2])]])

    assert decoded.kernels == ["paged_attention"] * 5
    assert mixed.kernels.count("prepare_heads") == 5


class Watched:
    """The host, which notes what it runs."""

    name = "host"
    self_checks = False

    def __init__(self) -> None:
        self.kernels: list[str] = []

    def launch(
        self, kernel: Kernel, inputs: Sequence[mx.array], launch: Launch
    ) -> list[mx.array]:
        self.kernels.append(kernel.name)
        return HostBackend(orders=(0,)).launch(kernel, inputs, launch)


def test_what_is_not_taken_runs_as_operations(
    lanes: Lanes, run: Run, run_naive: Run, make_model: Make, make_part: Make
) -> None:
    """PK-1: heads of 6 elements are right all the same, and every call of them is counted."""
    layout = layer_routes([FullAttention(2, 6), SlidingWindow(WINDOW, 2, 6), Alias(0)])
    steps, ends = schedule(make_part, ["a20", "a1 b3", "a1 b1", "a17"])
    names = ("prepare_heads", "paged_decode", "paged_prefill", "gather_pages")
    before = {name: counted(name) for name in names}
    model = make_model(layout, projected=True)

    actual = run(model, lanes["paged"](layout), steps)

    assert_close(actual, run_naive(model, {n: prompt(n, ends[n]) for n in ends}))
    for name, was in before.items():
        assert counted(name).get("host") == was.get("host")
    assert counted("prepare_heads")["ops"] - before["prepare_heads"].get("ops", 0) == 12
    # of three layers: a decode row in one step, rows in another
    assert counted("paged_decode")["ops"] - before["paged_decode"].get("ops", 0) == 6


def test_a_call_that_does_not_fit_its_route_is_refused(lanes: Lanes) -> None:
    """GR-1: an owner brings keys, an alias none, whatever computes."""
    batch = build_step_batch([RowInput(0, [1, 2])], None)
    context = lanes["paged"](LAYOUTS["aliases"]).context(batch, ["a"])
    q, k = mx.zeros((2, 4, 32)), mx.zeros((2, 2, 32))

    with pytest.raises(CacheMisuseError, match="an owner needs k and v"):
        context.attend(0, q, None, None, scoring=Scoring(1.0))
    with pytest.raises(CacheMisuseError, match="an owner needs k and v"):
        context.attend(0, q, k, None, scoring=Scoring(1.0))
    with pytest.raises(CacheMisuseError, match="an alias takes k and v from its anchor"):
        context.attend(2, q, k, k, scoring=Scoring(1.0))


@given(positions=st.lists(st.integers(0, 5000), max_size=4), tail=st.integers(0, 3))
def test_the_bound_of_contexts_is_a_power_of_two(positions: list[int], tail: int) -> None:
    """PK-1: decode rows alone count, each with its own token; few bounds, so few traces."""
    rows = [RowInput(position, [1]) for position in positions]
    if tail or not rows:
        rows.append(RowInput(9000, [1] * (2 + tail)))
    longest = longest_context(build_step_batch(rows, None))

    assert longest & (longest - 1) == 0
    assert longest >= max([SHORTEST, *(position + 1 for position in positions)])
    assert longest < max(SHORTEST + 1, 2 * max([0, *positions]) + 2)
