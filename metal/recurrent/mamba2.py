"""Mamba-2 over the tokens of a batch of rows; `state_space` has the definition."""

from __future__ import annotations

import functools
from collections.abc import Callable

import attrs
import mlx.core as mx

from ..runtime import dispatch
from ..runtime.fusion import fused
from ..runtime.launch import Kernel
from .scan_kernel import ScanKernel, compare, draw
from .state_space import mamba2_reference

_INPUTS = ("x", "dt", "b", "c", "a", "dt_bias", "skip", "state", "ip", "fp")
_SCAN = ScanKernel(Kernel("mamba2", _INPUTS, ("out", "after")))


@attrs.frozen(eq=False)
class Rates:
    """Parameters of the heads of a layer.

    Attributes:
        log_a: Logarithms `[H]` of the decay rates of states.
        dt_bias: `[H]`, added to the projected time steps.
        skip: Weights `[H]` of the inputs of a head in its outputs.
        limit: Least and greatest time step.
    """

    log_a: mx.array
    dt_bias: mx.array
    skip: mx.array
    limit: tuple[float, float]


def mamba2(
    x: mx.array,
    dt: mx.array,
    a: mx.array,
    b: mx.array,
    c: mx.array,
    state: mx.array,
    *,
    chunk: int,
) -> tuple[mx.array, mx.array]:
    """Run the recurrence over the tokens of each row, without the term `D x`.

    All arithmetic is float32.

    Args:
        x: Inputs `[N, L, H, P]`.
        dt: Time steps `[N, L, H]`, none below zero.
        a: Decay rates `[H]` of states, none above zero.
        b: `[N, L, G, n]`; a group serves `H / G` consecutive heads.
        c: `[N, L, G, n]`.
        state: State before the first token, `[N, H, P, n]`, float32.
        chunk: Most tokens that MLX operations compute at once.

    Returns:
        Outputs `[N, L, H, P]`, float32, and the state after the last token.
    """
    if _SCAN.takes((x.dtype, dt.dtype, b.dtype), state, _check_plain):
        return mamba2_kernel(x, dt, a, b, c, state)
    return mamba2_reference(x, dt, a, b, c, state, chunk=chunk)


def mamba2_mixed(
    mixed: mx.array,
    rows: mx.array,
    column: int,
    rates: Rates,
    state: mx.array,
    *,
    chunk: int,
) -> tuple[mx.array, mx.array]:
    """Run the recurrence on the outputs of a layer's projection and convolution, with `D x`.

    Args:
        mixed: Inputs, `B` and `C` of each token, `[N, L, H * P + 2 * G * n]`.
        rows: The projection of each token, `[N, L, W]`.
        column: First of the `H` columns from which time steps are computed.
        rates: Parameters of the layer.
        state: State before the first token, `[N, H, P, n]`, float32.
        chunk: Most tokens that MLX operations compute at once.

    Returns:
        Outputs `[N, L, H, P]`, float32, and the state after the last token.
    """
    if _SCAN.takes((mixed.dtype, rows.dtype, mixed.dtype), state, _check_mixed):
        return mamba2_mixed_kernel(mixed, rows, column, rates, state)
    return mamba2_mixed_reference(mixed, rows, column, rates, state, chunk=chunk)


# -- reference -----------------------------------------------------------------------------


def mamba2_mixed_reference(
    mixed: mx.array,
    rows: mx.array,
    column: int,
    rates: Rates,
    state: mx.array,
    *,
    chunk: int,
) -> tuple[mx.array, mx.array]:
    """Compute `mamba2_mixed` in MLX operations."""
    shape, (_, num_heads, depth, width) = mixed.shape[:2], state.shape
    dt = time_step(rows[..., column : column + num_heads], rates.dt_bias, rates.limit)
    x, bc = mx.split(mixed, [num_heads * depth], axis=-1)
    b, c = bc.reshape(*shape, -1, width).split(2, axis=2)
    x = x.reshape(*shape, num_heads, depth)
    a, skip = _fading(rates.log_a, rates.skip)
    out, after = mamba2_reference(x, dt, a, b, c, state, chunk=chunk)
    return _add_skip(out, skip[:, None], x), after


def time_step(dt: mx.array, bias: mx.array, limit: tuple[float, float]) -> mx.array:
    """Return `softplus(dt + bias)` within `limit`, float32.

    Args:
        dt: Output of the input projection, `[…, H]`.
        bias: `[H]`.
        limit: Least and greatest step.
    """
    return _time_step(limit)(dt, bias)


@functools.cache
def _time_step(limit: tuple[float, float]) -> Callable[[mx.array, mx.array], mx.array]:
    def time_step(dt: mx.array, bias: mx.array) -> mx.array:
        dt = mx.logaddexp(dt.astype(mx.float32) + bias.astype(mx.float32), 0.0)
        return mx.clip(dt, *limit)

    return fused(time_step)


@fused
def _fading(log_a: mx.array, skip: mx.array) -> tuple[mx.array, mx.array]:
    """Return the rates of the decays and the weights of the inputs, `[H]`, float32."""
    return -mx.exp(log_a.astype(mx.float32)), skip.astype(mx.float32)


@fused
def _add_skip(out: mx.array, skip: mx.array, x: mx.array) -> mx.array:
    return out + skip * x


# -- kernel --------------------------------------------------------------------------------


def mamba2_kernel(
    x: mx.array, dt: mx.array, a: mx.array, b: mx.array, c: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """Compute `mamba2` in one launch."""
    tokens = (x, dt, b, c.astype(b.dtype))
    return _launched(tokens, (0,) * 4, (a, a, a), state, b.shape[2], limit=None)


def mamba2_mixed_kernel(
    mixed: mx.array, rows: mx.array, column: int, rates: Rates, state: mx.array
) -> tuple[mx.array, mx.array]:
    """Compute `mamba2_mixed` in one launch."""
    _, num_heads, depth, width = state.shape
    inner = num_heads * depth
    num_groups = (mixed.shape[2] - inner) // (2 * width)
    starts = (0, column, inner, inner + num_groups * width)
    tokens = (mixed, rows, mixed, mixed)
    heads = (rates.log_a, rates.dt_bias, rates.skip)
    return _launched(tokens, starts, heads, state, num_groups, limit=rates.limit)


def _launched(
    tokens: tuple[mx.array, ...],
    starts: tuple[int, ...],
    heads: tuple[mx.array, mx.array, mx.array],
    state: mx.array,
    num_groups: int,
    *,
    limit: tuple[float, float] | None,
) -> tuple[mx.array, mx.array]:
    """Launch the kernel.

    Args:
        tokens: Arrays that hold inputs, time steps, `B` and `C`.
        starts: First column of each.
        heads: Parameters of each head: `a`, `dt_bias` and `skip`.
        state: As in `mamba2`.
        num_groups: Groups of heads.
        limit: Least and greatest time step; None if time steps and rates are ready to use.
    """
    x, dt, b, _ = tokens
    depth, width = state.shape[2:]
    template = {
        "TX": x.dtype,
        "TD": dt.dtype,
        "TB": b.dtype,
        "P": depth,
        "S": width,
        "RAW": limit is not None,
    }
    return _SCAN.launch(
        tokens,
        starts,
        heads,
        state,
        groups=num_groups,
        dtype=mx.float32,
        template=template,
        numbers=limit or (0, 0),
    )


def _check_plain(dtypes: tuple[mx.Dtype, ...], dims: tuple[int, ...], seed: int = 1) -> None:
    """Compare the kernel with its reference on time steps and rates."""
    tx, td, tb = dtypes

    def arguments(length: int) -> tuple[mx.array, ...]:
        x, bc, dt, state = _drawn(length, dims, seed)
        b, c = (t.astype(tb) for t in bc.split(2, axis=2))
        return x.astype(tx), mx.exp(dt - 2).astype(td), -mx.ones(4), b, c, state

    compare(mamba2_kernel, functools.partial(mamba2_reference, chunk=64), arguments)


def _check_mixed(dtypes: tuple[mx.Dtype, ...], dims: tuple[int, ...], seed: int = 1) -> None:
    """Compare the kernel with its reference on rows of a projection."""
    rates = Rates(mx.zeros(4), mx.ones(4), 2 * mx.ones(4), (0.5, 2.0))

    def arguments(length: int) -> tuple[mx.array, mx.array, int, Rates, mx.array]:
        x, bc, dt, state = _drawn(length, dims, seed)
        mixed = mx.concatenate([x.flatten(2), bc.flatten(2)], axis=-1).astype(dtypes[0])
        rows = mx.concatenate([mx.zeros_like(dt), dt], axis=-1).astype(dtypes[1])
        return mixed, rows, 4, rates, state

    reference = functools.partial(mamba2_mixed_reference, chunk=64)
    compare(mamba2_mixed_kernel, reference, arguments)


def _check(dtype: mx.Dtype, kind: str, seed: int = 1) -> None:
    if kind == "mixed":
        _check_mixed((mx.float32, dtype, mx.float32), (24, 32), seed)
    else:
        _check_plain((dtype, mx.float32, dtype), (16, 128), seed)


def _drawn(length: int, dims: tuple[int, ...], seed: int) -> list[mx.array]:
    """Return random inputs, `B` and `C`, steps and a state of 2 rows, 4 heads, 2 groups."""
    heads = (2, length, 4)
    shapes = [(*heads, dims[0]), (*heads, dims[1]), heads, (2, 4, *dims)]
    return draw(seed, shapes)


dispatch.register("mamba2", _check, [("mixed",), ("plain",)])
