"""On a GPU: kernels beside what MLX has, random inputs in real shapes, bfloat16.

Calls are chained, so that what the host needs for one hides behind another as it does in a
model; sides take turns, and medians are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from neve.layers.gated_delta import gated_delta
from neve.metal.attention.paged_attention import paged_decode, paged_prefill
from neve.metal.attention.pages import Pages
from neve.metal.attention.scoring import Scoring

from .figures import Figure, bounded, interleaved, ratio, seconds

NUM_HEADS, HEADS, DIMS, BLOCK = 32, 8, 128, 16
SCALE = DIMS**-0.5
SCORING = Scoring(SCALE)
CHAIN = 16
REPETITIONS = 15


def gpu_kernels() -> list[Figure]:
    """Paged attention, prefill behind a prefix, and the gated delta rule."""
    bandwidth = copy_bandwidth()
    decode = [
        figure
        for rows in (8, 32)
        for length in (1024, 8192)
        for figure in _decode(rows, length, bandwidth)
    ]
    return [*decode, _prefill(), *_gated_delta()]


def copy_bandwidth() -> float:
    """Return the bytes a second that copying 2 GiB reads and writes."""
    x = mx.random.normal((1 << 30,)).astype(mx.bfloat16)
    mx.eval(x)
    (time,) = interleaved([lambda _: _timed(lambda: [x * 1])], REPETITIONS)
    return 2 * x.nbytes / time


def _timed(build: Callable[[], Sequence[mx.array]]) -> float:
    """Return how long a graph takes that was built before, as the engine builds ahead."""
    outputs = build()
    mx.synchronize()
    return seconds(lambda: mx.eval(*outputs))


def _normal(*shape: int) -> mx.array:
    x = mx.random.normal(shape).astype(mx.bfloat16)
    mx.eval(x)
    return x


def _pages(num_blocks: int) -> Pages:
    shape = (num_blocks + 1, HEADS, BLOCK, DIMS)
    return Pages(_normal(*shape), _normal(*shape), mx.zeros((1,), mx.int32))


def _decode(rows: int, length: int, bandwidth: float) -> list[Figure]:
    """Return decode attention of rows of one length, paged against contiguous."""
    per_row = length // BLOCK
    # several layers' worth, so that no cache holds what is read
    layers = max(2, (1 << 30) // (rows * length * HEADS * DIMS * 4))
    pages = [_pages(rows * per_row) for _ in range(layers)]
    order = mx.random.permutation(rows * per_row).astype(mx.int32) + 1
    tables = order.reshape(rows, per_row)
    index = mx.arange(rows, dtype=mx.int32)
    positions = mx.full((rows,), length - 1, mx.int32)
    contiguous = [
        (_normal(rows, HEADS, length, DIMS), _normal(rows, HEADS, length, DIMS))
        for _ in range(layers)
    ]
    q = _normal(rows, NUM_HEADS, DIMS)
    mx.eval(tables, index, positions)

    def paged() -> list[mx.array]:
        y = q
        for i in range(CHAIN):
            y = paged_decode(
                y,
                pages[i % layers],
                tables,
                index,
                positions,
                longest=length,
                scoring=SCORING,
            )
        return [y]

    def sdpa() -> list[mx.array]:
        y = q[:, :, None]
        for i in range(CHAIN):
            k, v = contiguous[i % layers]
            y = mx.fast.scaled_dot_product_attention(y, k, v, scale=SCALE)
        return [y]

    # MLX chooses its fastest attention only where keys are known when the graph is built
    sides = [mx.compile(paged), sdpa]
    ours, theirs = interleaved(
        [lambda _: _timed(sides[0]) / CHAIN, lambda _: _timed(sides[1]) / CHAIN], REPETITIONS
    )
    name = f"decode attention, {rows} x {length}"
    detail = f"{ours * 1e6:.0f} us paged, {theirs * 1e6:.0f} us contiguous"
    figures = [bounded(name, ours / theirs, 1.1, "x", detail)]
    if (rows, length) == (32, 8192):
        reached = 2 * rows * length * HEADS * DIMS * 2 / ours
        figures.append(
            ratio(f"{name}, of a copy's bytes", reached / 1e12, bandwidth / 1e12, 0.6, "TB/s")
        )
    return figures


def _prefill() -> Figure:
    """Return attention of a slice of 512 tokens behind 8,192, paged against contiguous."""
    length, prefix = 512, 8192
    pages = _pages((prefix + length) // BLOCK)
    tables = mx.random.permutation((prefix + length) // BLOCK).astype(mx.int32)[None] + 1
    keys, values = (_normal(1, HEADS, prefix + length, DIMS) for _ in range(2))
    q = _normal(length, NUM_HEADS, DIMS)
    row, position = mx.array([0], mx.int32), mx.array([prefix], mx.int32)
    mx.eval(tables, row, position)

    def paged() -> list[mx.array]:
        y = q
        for _ in range(CHAIN):
            y = paged_prefill(y, pages, tables, row, position, start=prefix, scoring=SCORING)
        return [y]

    def sdpa() -> list[mx.array]:
        y = q.swapaxes(0, 1)[None]
        for _ in range(CHAIN):
            y = mx.fast.scaled_dot_product_attention(
                y, keys, values, scale=SCALE, mask="causal"
            )
        return [y]

    ours, theirs = interleaved(
        [lambda _: CHAIN / _timed(paged), lambda _: CHAIN / _timed(sdpa)], REPETITIONS
    )
    return ratio("prefill attention, 512 behind 8,192", ours, theirs, 0.8, "layers/s")


def _gated_delta() -> list[Figure]:
    """Return the gated delta rule of a layer of 16 heads over 2,048 and over 32 x 1 tokens."""

    def layer(rows: int, length: int) -> Callable[[int], float]:
        q, k, v = (_normal(rows, length, 16, DIMS) * SCALE for _ in range(3))
        log_g = -mx.random.uniform(shape=(rows, length, 16))
        beta = mx.random.uniform(shape=(rows, length, 16))
        state = mx.random.normal((rows, 16, DIMS, DIMS))
        mx.eval(q, k, v, log_g, beta, state)

        def chain() -> list[mx.array]:
            after, out = state, v
            for _ in range(CHAIN):
                out, after = gated_delta(q, k, out, log_g, beta, after)
            return [out, after]

        compiled = mx.compile(chain)
        return lambda _: _timed(compiled) / CHAIN

    (prefill,) = interleaved([layer(1, 2048)], REPETITIONS)
    (step,) = interleaved([layer(32, 1)], REPETITIONS)
    return [
        bounded("gated delta rule, 2,048 tokens", prefill * 1e3, 5, "ms a layer"),
        bounded("gated delta rule, step of 32 rows", step * 1e6, 60, "us a layer"),
    ]
