"""The gated delta rule over the tokens of a batch of rows; see `delta_rule` for what it is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import mlx.core as mx

from ..elementwise.norms import rms_norm
from ..runtime import dispatch
from ..runtime.fusion import fused
from ..runtime.launch import Kernel, Launch, floats, ints
from .delta_rule import gated_delta_reference

_EPS = 1e-6
"""Added to the sum of squares of a query or key that is normed here."""

_INPUTS = ("q", "k", "v", "a", "b", "log_a", "dt_bias", "state", "ip", "fp")
_KERNEL = Kernel("gated_delta", _INPUTS, ("out", "after"))
_THREADS, _ROWS = 128, 16
_WIDTHS = (32, 64, 96, 128, 256)

_Check: TypeAlias = Callable[[tuple[mx.Dtype, ...], tuple[int, ...]], None]


@attrs.frozen
class Columns:
    """Where the rates of tokens lie in the rows of a joined projection.

    Attributes:
        decay: First of the `Hv` columns that decays are made of.
        rate: First of the `Hv` columns that rates of correction are made of.
    """

    decay: int
    rate: int


def gated_delta(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    log_g: mx.array,
    beta: mx.array,
    state: mx.array,
) -> tuple[mx.array, mx.array]:
    """Run the gated delta rule over the tokens of each row.

    It is float32 inside.

    Args:
        q: Queries `[N, L, Hk, Dk]`, normed and scaled.
        k: Keys `[N, L, Hk, Dk]`, normed. A key head serves `Hv / Hk` consecutive value heads.
        v: Values `[N, L, Hv, Dv]`.
        log_g: Logarithms `[N, L, Hv]` of the decays, none above zero.
        beta: Rates `[N, L, Hv]`, from zero to one.
        state: State before the first token, `[N, Hv, Dv, Dk]`, float32.

    Returns:
        Outputs `[N, L, Hv, Dv]` in the dtype of `v`, and the state after the last token.
    """
    dtypes = (q.dtype, v.dtype, log_g.dtype)
    if _takes_kernel(dtypes, state, _check_plain):
        return gated_delta_kernel(q, k, v, log_g, beta, state)
    return gated_delta_reference(q, k, v, log_g, beta, state)


def gated_delta_mixed(
    mixed: mx.array,
    rows: mx.array,
    columns: Columns,
    log_a: mx.array,
    dt_bias: mx.array,
    state: mx.array,
) -> tuple[mx.array, mx.array]:
    """Run the gated delta rule over what a layer's projection and convolution say.

    Queries and keys are divided by their lengths, queries scaled by `Dk ** -0.5`. Decays are
    `exp(-exp(log_a) * softplus(a + dt_bias))` and rates `sigmoid(b)`.

    Args:
        mixed: Queries, keys and values of each token, `[N, L, 2 * Hk * Dk + Hv * Dv]`.
        rows: The projection of each token, `[N, L, W]`.
        columns: Where `a` and `b` lie in it.
        log_a: `[Hv]`.
        dt_bias: `[Hv]`.
        state: State before the first token, `[N, Hv, Dv, Dk]`, float32.

    Returns:
        Outputs `[N, L, Hv, Dv]` in the dtype of `mixed`, and the state after the last token.
    """
    dtypes = (mixed.dtype, mixed.dtype, rows.dtype)
    if _takes_kernel(dtypes, state, _check_mixed):
        return gated_delta_mixed_kernel(mixed, rows, columns, log_a, dt_bias, state)
    return gated_delta_mixed_reference(mixed, rows, columns, log_a, dt_bias, state)


def _takes_kernel(dtypes: tuple[mx.Dtype, ...], state: mx.array, check: _Check) -> bool:
    """Decide for dtypes of keys, values and rates, and a state."""
    dims = state.shape[2:]
    unsupported = None
    if dims[1] not in _WIDTHS:
        unsupported = f"keys of {dims[1]} elements are not of {_WIDTHS}"
    elif state.dtype != mx.float32:
        unsupported = f"a state in {state.dtype} is not float32"
    return dispatch.takes_kernel(
        "gated_delta",
        (check.__name__, dtypes, dims),
        functools.partial(check, dtypes, dims),
        unsupported=unsupported,
    )


# -- reference -----------------------------------------------------------------------------


def gated_delta_mixed_reference(
    mixed: mx.array,
    rows: mx.array,
    columns: Columns,
    log_a: mx.array,
    dt_bias: mx.array,
    state: mx.array,
) -> tuple[mx.array, mx.array]:
    """Run it in MLX operations; see `gated_delta_mixed`."""
    shape, (_, num_heads, depth, width) = mixed.shape[:2], state.shape
    num_keys = _num_keys(mixed, state)
    qk, v = mx.split(mixed, [2 * num_keys * width], axis=-1)
    qk = qk.reshape(*shape, 2 * num_keys, width).astype(mx.float32)
    q, k = _unit(qk).split(2, axis=2)
    a, b = (rows[..., i : i + num_heads] for i in (columns.decay, columns.rate))
    log_g, beta = _rates(a, b, log_a, dt_bias)
    v = v.reshape(*shape, num_heads, depth)
    return gated_delta_reference(q * width**-0.5, k, v, log_g, beta, state)


@fused
def _rates(
    a: mx.array, b: mx.array, log_a: mx.array, dt_bias: mx.array
) -> tuple[mx.array, mx.array]:
    """Return the logarithms of the decays and the rates of correction, float32."""
    dt = mx.logaddexp(a.astype(mx.float32) + dt_bias, 0.0)
    return -mx.exp(log_a.astype(mx.float32)) * dt, mx.sigmoid(b.astype(mx.float32))


def _unit(x: mx.array) -> mx.array:
    """Return `x / sqrt(sum(x²) + eps)` over the last axis, float32.

    One over the root of the width turns an RMS norm into it, and `eps` of a sum is
    `eps / width` of a mean.
    """
    width = x.shape[-1]
    return rms_norm(x, None, _EPS / width) * width**-0.5


# -- kernel --------------------------------------------------------------------------------


def gated_delta_kernel(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    log_g: mx.array,
    beta: mx.array,
    state: mx.array,
) -> tuple[mx.array, mx.array]:
    """Run it in one launch; see `gated_delta`."""
    num_keys, width = k.shape[2:]
    num_heads, depth = v.shape[2:]
    lengths = (num_keys * width, num_keys * width, num_heads * depth, num_heads, num_heads)
    none = floats(0.0)
    tokens = (q, k.astype(q.dtype), v, log_g, beta.astype(log_g.dtype))
    return _launched(tokens, (none, none), state, num_keys, (lengths, (0,) * 5), raw=False)


def gated_delta_mixed_kernel(
    mixed: mx.array,
    rows: mx.array,
    columns: Columns,
    log_a: mx.array,
    dt_bias: mx.array,
    state: mx.array,
) -> tuple[mx.array, mx.array]:
    """Run it in one launch; see `gated_delta_mixed`."""
    num_keys, width = _num_keys(mixed, state), state.shape[3]
    lengths = (mixed.shape[2],) * 3 + (rows.shape[2],) * 2
    starts = (0, num_keys * width, 2 * num_keys * width, columns.decay, columns.rate)
    tokens = (mixed, mixed, mixed, rows, rows)
    parameters = (log_a, dt_bias)
    return _launched(tokens, parameters, state, num_keys, (lengths, starts), raw=True)


def _launched(
    tokens: Sequence[mx.array],
    parameters: tuple[mx.array, mx.array],
    state: mx.array,
    num_keys: int,
    places: tuple[Sequence[int], Sequence[int]],
    *,
    raw: bool,
) -> tuple[mx.array, mx.array]:
    """Launch the kernel.

    Args:
        tokens: Where queries, keys, values and the two rates lie.
        parameters: `log_a` and `dt_bias`, looked at if `raw`.
        state: As that of `gated_delta`.
        num_keys: Key heads.
        places: How many elements a token has in each of `tokens`, and which one is the first
            that counts.
        raw: Whether queries and keys are to be normed, and rates to be made of `a` and `b`.
    """
    q, _, v, a, _ = tokens
    num_rows, num_heads, depth, width = state.shape
    length = q.shape[1]
    launch = Launch(
        template={
            "T": v.dtype,
            "TQ": q.dtype,
            "TV": v.dtype,
            "TA": a.dtype,
            "DK": width,
            "DV": depth,
            "RAW": raw,
        },
        grid=(_THREADS * -(-depth // _ROWS), num_heads, num_rows),
        threadgroup=(_THREADS, 1, 1),
        outputs=[((num_rows, length, num_heads, depth), v.dtype), (state.shape, mx.float32)],
    )
    ip = ints(length, num_heads // num_keys, *places[0], *places[1])
    out, after = _KERNEL(*tokens, *parameters, state, ip, floats(_EPS), launch=launch)
    return out, after


def _num_keys(mixed: mx.array, state: mx.array) -> int:
    """Return how many key heads `mixed` has beside the values."""
    _, num_heads, depth, width = state.shape
    return (mixed.shape[2] - num_heads * depth) // (2 * width)


def _check_plain(dtypes: tuple[mx.Dtype, ...], dims: tuple[int, ...], seed: int = 1) -> None:
    """Compare the kernel with its reference, on as many tokens as show all of it."""
    (dk, dv, dr), width = dtypes, dims[1]
    got: list[mx.array] = []
    want: list[mx.array] = []
    for length in (1, 11):
        q, k, v, a, b, state = _drawn(length, dims, seed)
        q, k = _unit(q) * width**-0.5, _unit(k)
        log_g, beta = (-mx.exp(a)).astype(dr), mx.sigmoid(b).astype(dr)
        args = (q.astype(dk), k.astype(dk), v.astype(dv), log_g, beta, state)
        got += gated_delta_kernel(*args)
        want += gated_delta_reference(*args)
    dispatch.compare(got, want)


def _check_mixed(dtypes: tuple[mx.Dtype, ...], dims: tuple[int, ...], seed: int = 1) -> None:
    """Compare the kernel with its reference, on as many tokens as show all of it."""
    got: list[mx.array] = []
    want: list[mx.array] = []
    for length in (1, 11):
        q, k, v, a, b, state = _drawn(length, dims, seed)
        mixed = mx.concatenate([x.flatten(2) for x in (q, k, v)], axis=-1).astype(dtypes[0])
        rows = mx.concatenate([b, a], axis=-1).astype(dtypes[2])
        args = (mixed, rows, Columns(decay=4, rate=0), mx.zeros(4), mx.ones(4), state)
        got += gated_delta_mixed_kernel(*args)
        want += gated_delta_mixed_reference(*args)
    dispatch.compare(got, want)


def _check(dtype: mx.Dtype, kind: str, seed: int = 1) -> None:
    if kind == "mixed":
        _check_mixed((dtype,) * 3, (24, 32), seed)
    else:
        _check_plain((mx.float32, dtype, mx.float32), (16, 128), seed)


def _drawn(length: int, dims: tuple[int, ...], seed: int) -> list[mx.array]:
    """Return random queries, keys, values, two rates and a state of 2 rows, 2 and 4 heads."""
    shapes = [
        *[(2, length, 2, dims[1])] * 2,
        (2, length, 4, dims[0]),
        *[(2, length, 4)] * 2,
        (2, 4, *dims),
    ]
    return [
        mx.random.normal(shape, key=key)
        for shape, key in zip(shapes, mx.random.split(mx.random.key(seed), 6), strict=True)
    ]


dispatch.register("gated_delta", _check, [("mixed",), ("plain",)])
