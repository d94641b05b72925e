"""The two contexts against one another and against the naive one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neve.contract.cache_spec import CacheLayout
from neve.contract.forward import RopeSpec, Scoring
from neve.errors import CacheMisuseError
from neve.forward.step_batch import RowInput, build_step_batch

pytestmark = pytest.mark.mlx

ATOL = 2e-5
LENGTH = 36

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


@pytest.mark.parametrize("kind", ["flat", "paged"])
@pytest.mark.parametrize("chunk", [1, 7, 16, 17, LENGTH])
def test_any_chunking_is_naive_attention(
    kind: str,
    chunk: int,
    layout: CacheLayout,
    lanes: Lanes,
    run: Run,
    run_naive: Run,
    make_model: Callable[..., Any],
    make_part: Callable[..., Any],
) -> None:
    """KV-10: however a prompt is cut, both paths compute what the contract says."""
    model, tokens = make_model(layout), prompt("a", LENGTH)
    steps = [[make_part("a", part)] for part in cut(tokens, chunk)]

    actual = run(model, lanes[kind](layout), steps)

    assert_close(actual, run_naive(model, {"a": tokens}))


@pytest.mark.parametrize("kind", ["flat", "paged"])
def test_a_mixed_batch_is_its_sequences_alone(
    kind: str,
    layout: CacheLayout,
    lanes: Lanes,
    run: Run,
    run_naive: Run,
    make_model: Callable[..., Any],
    make_part: Callable[..., Any],
) -> None:
    """SC-1: decode rows and prefill slices of several sequences do not see one another."""
    tokens = {name: prompt(name, 40) for name in "abc"}
    ends = dict.fromkeys(tokens, 0)
    steps: list[list[Any]] = []
    for lengths in ["a20", "a1 b18", "a1 b9 c1", "c1 a1 b2", "b1 c1", "a1 b1 c20", "c1"]:
        step: list[Any] = []
        for name, length in [(word[0], int(word[1:])) for word in lengths.split()]:
            step.append(make_part(name, tokens[name][ends[name] : ends[name] + length]))
            ends[name] += length
        steps.append(step)
    model = make_model(layout)

    actual = run(model, lanes[kind](layout), steps)

    assert_close(actual, run_naive(model, {n: tokens[n][: ends[n]] for n in tokens}))


@pytest.mark.parametrize("kind", ["flat", "paged"])
def test_sinks_reach_every_layer(
    kind: str,
    layout: CacheLayout,
    lanes: Lanes,
    run: Run,
    make_model: Callable[..., Any],
    make_part: Callable[..., Any],
) -> None:
    """PK-1: decode rows and slices weigh sinks, behind a prefix and at the prompt's start."""
    model = make_model(layout, sinks=mx.array([-1.0, 0.0, 1.0, 2.0]))
    tokens = {name: prompt(name, 24) for name in "ab"}
    steps = [
        [make_part("a", tokens["a"][:17])],
        [make_part("a", tokens["a"][17:18]), make_part("b", tokens["b"][:9])],
        [make_part("b", tokens["b"][9:])],
    ]

    actual = run(model, lanes[kind](layout), steps)

    assert_close(actual, run(model, lanes["naive"](layout), steps))
    plain = run(make_model(layout), lanes[kind](layout), steps)
    assert not any(mx.allclose(plain[n], actual[n], atol=0.01).item() for n in actual)


@pytest.mark.parametrize("kind", ["flat", "paged"])
def test_decode_rows_of_very_different_lengths_keep_their_order(
    kind: str,
    layout: CacheLayout,
    lanes: Lanes,
    run: Run,
    run_naive: Run,
    make_model: Callable[..., Any],
    make_part: Callable[..., Any],
) -> None:
    """SC-1: a short row before long ones gets its own result, however rows are grouped."""
    model, lengths = make_model(layout), {"a": 2, "b": 60, "c": 20}
    tokens = {name: prompt(name, length + 3) for name, length in lengths.items()}
    steps = [[make_part(name, tokens[name][:length]) for name, length in lengths.items()]]
    steps += [
        [make_part(name, tokens[name][length + i :][:1]) for name, length in lengths.items()]
        for i in range(3)
    ]

    actual = run(model, lanes[kind](layout), steps)

    assert_close(actual, run_naive(model, tokens))


schedules = st.lists(
    st.dictionaries(
        st.sampled_from("abc"), st.sampled_from([1, 1, 2, 3, 5, 8]), min_size=1, max_size=3
    ),
    min_size=1,
    max_size=6,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    schedule=schedules,
    name=st.sampled_from(["uniform", "two groups", "aliases", "windows", "windows alone"]),
    seed=st.integers(0, 99),
)
def test_paged_is_flat(
    schedule: list[dict[str, int]],
    name: str,
    seed: int,
    layouts: Mapping[str, CacheLayout],
    lanes: Lanes,
    run: Run,
    make_model: Callable[..., Any],
    make_part: Callable[..., Any],
) -> None:
    """KV-10: for any schedule, layout and order of blocks the two paths agree."""
    ends: dict[str, int] = {}
    steps: list[list[Any]] = []
    for lengths in schedule:
        steps.append(
            [make_part(n, prompt(n, 64)[ends.get(n, 0) :][:k]) for n, k in lengths.items()]
        )
        for n, k in lengths.items():
            ends[n] = ends.get(n, 0) + k
    layout = layouts[name]
    model = make_model(layout)
    paged = lanes["paged"](layout, block_size=4, num_blocks=40, seed=seed)

    assert_close(run(model, paged, steps), run(model, lanes["flat"](layout), steps))


def test_leftovers_change_no_bit(
    layout: CacheLayout,
    lanes: Lanes,
    run: Run,
    make_model: Callable[..., Any],
    make_part: Callable[..., Any],
) -> None:
    """KV-2: what other sequences left in blocks and tables is never seen."""
    model, a, b = make_model(layout), prompt("a", 30), prompt("b", 9)
    steps = [
        [make_part("a", a[:17])],
        [make_part("a", a[17:18]), make_part("b", b[:5])],
        [make_part("a", a[18:19]), make_part("b", b[5:6])],
        [make_part("a", a[19:30]), make_part("b", b[6:9])],
    ]

    clean = run(model, lanes["paged"](layout, garbage=False), steps)
    littered = run(model, lanes["paged"](layout, garbage=True), steps)

    for name in clean:
        assert mx.array_equal(clean[name], littered[name])


def test_where_the_blocks_lie_changes_no_bit(
    layout: CacheLayout,
    lanes: Lanes,
    run: Run,
    make_model: Callable[..., Any],
    make_part: Callable[..., Any],
) -> None:
    """KV-2: block ids are names; any order of them gives the same result."""
    model = make_model(layout)
    steps = [[make_part("a", part)] for part in cut(prompt("a", LENGTH), 7)]

    one, other = (run(model, lanes["paged"](layout, seed=seed), steps)["a"] for seed in (1, 2))

    assert mx.array_equal(one, other)


@pytest.mark.parametrize("kind", ["flat", "paged"])
@pytest.mark.parametrize(
    ("layer", "keys", "error", "sentence"),
    [
        (0, False, CacheMisuseError, "layer 0: an owner needs k and v"),
        (3, True, CacheMisuseError, "layer 3: an alias takes k and v from its anchor"),
        (1, True, CacheMisuseError, "layer 1 has no cache: its route is Uncached"),
        (1, False, CacheMisuseError, "layer 1 has no cache: its route is Uncached"),
    ],
)
def test_a_call_that_does_not_fit_its_route_is_refused(
    kind: str,
    layer: int,
    keys: bool,
    error: type[Exception],
    sentence: str,
    layouts: Mapping[str, CacheLayout],
    lanes: Lanes,
) -> None:
    """GR-1: an alias writes nothing, an owner must, and no other layer may ask."""
    layout = layouts["aliases"]
    batch = build_step_batch([RowInput(0, [1, 2])], None)
    context = lanes[kind](layout).context(batch, ["a"])
    k = mx.zeros((2, 2, 8)) if keys else None

    with pytest.raises(error, match=sentence):
        context.attend(layer, mx.zeros((2, 4, 8)), k, k, scoring=Scoring(1.0))


@pytest.mark.parametrize("kind", ["flat", "paged"])
def test_keys_without_values_are_refused(
    kind: str, layouts: Mapping[str, CacheLayout], lanes: Lanes
) -> None:
    """GR-1: half a token is never stored."""
    batch = build_step_batch([RowInput(0, [1, 2])], None)
    context = lanes[kind](layouts["uniform"]).context(batch, ["a"])

    with pytest.raises(CacheMisuseError):
        context.attend(0, mx.zeros((2, 4, 8)), mx.zeros((2, 2, 8)), None, scoring=Scoring(1.0))


@pytest.mark.parametrize("kind", ["flat", "paged"])
def test_heads_are_rotated_at_the_steps_positions(
    kind: str, layouts: Mapping[str, CacheLayout], lanes: Lanes
) -> None:
    """FW-2: each token is rotated at its own absolute position, decode row or slice."""
    batch = build_step_batch([RowInput(7, [1]), RowInput(3, [1, 2])], None)
    x = mx.random.normal((3, 2, 8), key=mx.random.key(0))

    rotated = [
        lanes[k](layouts["uniform"]).context(batch, "ab").rope(x, RopeSpec(8, 1e4))
        for k in (kind, "naive")
    ]

    np.testing.assert_allclose(*rotated, atol=1e-5)


@pytest.mark.parametrize("kind", ["flat", "paged"])
def test_heads_of_another_width_are_refused(
    kind: str, layouts: Mapping[str, CacheLayout], lanes: Lanes
) -> None:
    """GR-1: a wrong `head_dim` is named with its layer, not as a broadcast error."""
    batch = build_step_batch([RowInput(0, [1, 2])], None)
    context = lanes[kind](layouts["uniform"]).context(batch, ["a"])
    q, k = mx.zeros((2, 4, 4)), mx.zeros((2, 2, 4))

    with pytest.raises(CacheMisuseError, match=r"layer 0: .* \[T, 2, 8\] .* \[T, 2, 4\]"):
        context.attend(0, q, k, k, Scoring(1.0))
