"""The residual stream: the same formula, whatever is computed together."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from neve.layers.joint import join_layers
from neve.layers.mlp import GatedMLP
from neve.layers.norms import RMSNorm, ZeroCentredRMSNorm
from neve.layers.stream import Delta, Normed, Stream, project
from neve.metal.linear.layout import prefer_layout
from neve.metal.runtime import dispatch, launch
from neve.testing.kernels import emulator

pytestmark = pytest.mark.mlx

needs_compiler = pytest.mark.skipif(
    emulator.compiler() is None, reason="no C++ compiler to build kernels for the host"
)


class Block(nn.Module):
    """A projection and an MLP, each behind a norm and a residual."""

    def __init__(self, *, zero_centred: bool = False) -> None:
        super().__init__()
        norm = ZeroCentredRMSNorm if zero_centred else RMSNorm
        self.first, self.second = norm(64, eps=1e-5), norm(64, eps=1e-5)
        self.first.weight = mx.random.normal((64,), key=mx.random.key(1))
        self.mixer, self.mlp = nn.Linear(64, 64, bias=False), GatedMLP(64, 96)

    def __call__(self, stream: Stream) -> Stream:
        stream, normed = stream.norm(self.first)
        heads = project(self.mixer, normed).reshape(-1, 4, 16)
        stream = stream.add(Delta(self.mixer, heads))
        stream, normed = stream.norm(self.second)
        return stream.add(self.mlp.delta(normed))

    def formula(self, x: mx.array) -> mx.array:
        x = x + self.mixer(self.mixer(self.first(x)))
        return x + self.mlp(self.second(x))


def rows(num_rows: int) -> mx.array:
    return mx.random.normal((num_rows, 64), key=mx.random.key(num_rows))


def value(stream: Stream) -> mx.array:
    return stream.x if stream.delta is None else stream.x + stream.delta


def run(block: Block, x: mx.array) -> mx.array:
    return value(block(block(Stream(x))))


def launches() -> int:
    return sum(n for name, n in dispatch.counts().items() if name.endswith(":host"))


@pytest.mark.parametrize("num_rows", [1, 3, 40])
@pytest.mark.parametrize("joined", [False, True])
def test_operations_are_those_of_the_formula(num_rows: int, joined: bool) -> None:
    """FW-2: without kernels a block gives the bits of its formula."""
    block, x = Block(), rows(num_rows)
    if joined:
        join_layers(block)

    assert mx.array_equal(run(block, x), block.formula(block.formula(x)))


@needs_compiler
@pytest.mark.parametrize("zero_centred", [False, True])
@pytest.mark.parametrize(("num_rows", "expected"), [(1, 2 * 4), (8, 2 * 4), (9, 2 * 2 + 1)])
def test_few_rows_take_few_launches(num_rows: int, expected: int, zero_centred: bool) -> None:
    """PK-1: norms and sums are part of products of few rows; of many, sum and norm are one."""
    block, x = Block(zero_centred=zero_centred), rows(num_rows)
    want = block.formula(block.formula(x))
    mx.eval(want)
    join_layers(block)
    with launch.using(emulator.HostBackend()):
        prefer_layout(block)
        before = launches()
        got = run(block, x)

    # of many rows: sums with norms, and activations; products are MLX's
    assert launches() == before + expected
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_sum_that_waits_is_added_first() -> None:
    """FW-2: two blocks may add to the stream with no norm between them."""
    x, first, second = rows(2), rows(2) * 3, rows(2) * 5

    assert mx.array_equal(value(Stream(x).add(first).add(second)), x + first + second)


@pytest.mark.parametrize("as_delta", [False, True])
def test_a_norm_behind_a_block_is_computed_before_the_sum(as_delta: bool) -> None:
    """FW-2: what a block adds may be normed first, whoever computes the sum."""
    layer, after, norm = nn.Linear(64, 64), RMSNorm(64, eps=1e-8), RMSNorm(64, eps=1e-5)
    x, made = rows(2), rows(2) * 3
    stream = Stream(x).add(Delta(layer, made) if as_delta else layer(made), after=after)
    want = x + after(layer(made))
    summed, normed = stream.norm(norm)

    assert mx.array_equal(stream.computed(), want)
    assert mx.array_equal(stream.add(made).x, want)
    assert mx.array_equal(summed.x, want)
    assert mx.array_equal(normed.computed(), norm(want))
    assert mx.array_equal(stream.norm_rows(norm, mx.array([1])), norm(want)[1:])


@needs_compiler
def test_a_norm_behind_a_block_takes_no_launch_of_its_own() -> None:
    """PK-1: it is computed together with the sum and the norm of the next block."""
    layer, after, norm = nn.Linear(64, 64), RMSNorm(64, eps=1e-8), RMSNorm(64, eps=1e-5)
    x, made = rows(2), rows(2) * 3
    want = norm(x + after(layer(made)))
    mx.eval(want)
    with launch.using(emulator.HostBackend()):
        before = launches()
        stream = Stream(x).add(Delta(layer, made), after=after)
        got = stream.norm(norm)[1].computed()

    assert launches() == before + 1
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("delta", [None, 2.0])
@pytest.mark.parametrize("asked", [[1, 3], [0, 1, 2, 3]], ids=["some", "all"])
def test_rows_after_the_last_block(asked: list[int], delta: float | None) -> None:
    """FW-2: only the rows that are asked for are normed, which may be all."""
    norm, x, chosen = RMSNorm(64, eps=1e-5), rows(4), mx.array(asked)
    stream = Stream(x, None if delta is None else x * delta)

    assert mx.array_equal(stream.norm_rows(norm, chosen), norm(value(stream)[chosen]))


def test_what_is_no_product_has_the_norm_computed() -> None:
    """FW-2: a norm may be read by anything."""
    norm, x = RMSNorm(64, eps=1e-5), rows(2)

    assert mx.array_equal(Normed(x, norm).computed(), norm(x))
    assert Normed(x).computed() is x
