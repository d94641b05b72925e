"""Rotary positions apart from those of the cache, on both paths and by kernels."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from neve.contract.cache_spec import (
    Alias,
    FullAttention,
    SlidingWindow,
    layer_routes,
)
from neve.metal.runtime import launch
from neve.testing.kernels import emulator

pytestmark = pytest.mark.mlx

ATOL = 3e-5
LAYOUT = layer_routes([FullAttention(2, 32), SlidingWindow(11, 2, 32), Alias(0), Alias(1)])
STEPS = ["a20", "a1 b7", "b1 a1", "a1 b20", "b1", "a1"]

Rotary = Callable[[mx.array], mx.array]


def shifted(positions: mx.array) -> mx.array:
    return positions[None] + 5


def stretched(positions: mx.array) -> mx.array:
    return positions[None] * 3


def of_a_picture(positions: mx.array) -> mx.array:
    """Return what tokens of a picture have: a time that stands still, a row and a column."""
    return mx.stack([positions // 8, positions // 4 % 5, positions % 4])


def parts_of(make_part: Callable[..., Any]) -> list[list[Any]]:
    ends: dict[str, int] = {}
    steps: list[list[Any]] = []
    for step in STEPS:
        parts: list[Any] = []
        for word in step.split():
            name, length = word[0], int(word[1:])
            begin = ends.get(name, 0)
            ends[name] = begin + length
            tokens = [(ord(name) * 7 + i * i * 3) % 50 for i in range(begin, begin + length)]
            parts.append(make_part(name, tokens))
        steps.append(parts)
    return steps


@contextmanager
def kernels() -> Generator[None]:
    if emulator.compiler() is None:
        pytest.skip("no g++: kernels cannot run here")
    with launch.using(emulator.HostBackend(orders=(0,))):
        yield


@pytest.mark.parametrize("rotary", [shifted, stretched, of_a_picture])
@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("path", ["flat", "paged", "kernels"])
def test_heads_are_rotated_by_rotary_positions(
    path: str,
    projected: bool,
    rotary: Rotary,
    lanes: Mapping[str, Callable[..., Any]],
    run: Callable[..., dict[str, mx.array]],
    make_model: Callable[..., Any],
    make_part: Callable[..., Any],
) -> None:
    """FW-2: keys are stored and seen at the cache's positions, and turned by the others."""
    num_axes = rotary(mx.arange(2)).shape[0]
    model = make_model(LAYOUT, projected=projected, num_axes=num_axes)
    steps = parts_of(make_part)
    expected = run(model, lanes["naive"](LAYOUT), steps, rotary)
    plain = run(model, lanes["naive"](LAYOUT), steps)
    with kernels() if path == "kernels" else nullcontext():
        lane = lanes["paged" if path == "kernels" else path](LAYOUT)
        actual = run(model, lane, steps, rotary)

    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], atol=ATOL, err_msg=name)
    # a constant shift is no other angle between two tokens
    moved = max(float(mx.abs(plain[n] - expected[n]).max()) for n in expected)
    assert (moved > 100 * ATOL) == (rotary is not shifted)
