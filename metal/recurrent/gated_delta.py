"""The gated delta rule over the tokens of a batch of rows; `delta_rule` has the definition."""

from __future__ import annotations

import attrs
import mlx.core as mx

from ..elementwise.norms import rms_norm
from ..runtime import dispatch
from ..runtime.fusion import fused
from ..runtime.launch import Kernel, floats
from .delta_rule import gated_delta_reference
from .scan_kernel import ScanKernel, compare, draw

_EPS = 1e-6
"""Number that is added to the sum of squares of a query or key."""

_INPUTS = ("q", "k", "v", "a", "b", "log_a", "dt_bias", "state", "ip", "fp")
_SCAN = ScanKernel(Kernel("gated_delta", _INPUTS, ("out", "after")))


@attrs.frozen
class Columns:
    """Columns of the rates of tokens in the rows of a joined projection.

    Attributes:
        decay: First of the `Hv` columns of `a`, from which decays are computed.
        rate: First of the `Hv` columns of `b`, from which rates of correction are computed.
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

    All arithmetic is float32.

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
    if _SCAN.takes(dtypes, state, _check_plain):
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
    """Run the gated delta rule on the outputs of a layer's projection and convolution.

    Queries and keys are divided by their lengths, queries scaled by `Dk ** -0.5`. Decays are
    `exp(-exp(log_a) * softplus(a + dt_bias))` and rates `sigmoid(b)`.

    Args:
        mixed: Queries, keys and values of each token, `[N, L, 2 * Hk * Dk + Hv * Dv]`.
        rows: The projection of each token, `[N, L, W]`.
        columns: Columns of `a` and `b` in `rows`.
        log_a: `[Hv]`.
        dt_bias: `[Hv]`.
        state: State before the first token, `[N, Hv, Dv, Dk]`, float32.

    Returns:
        Outputs `[N, L, Hv, Dv]` in the dtype of `mixed`, and the state after the last token.
    """
    dtypes = (mixed.dtype, mixed.dtype, rows.dtype)
    if _SCAN.takes(dtypes, state, _check_mixed):
        return gated_delta_mixed_kernel(mixed, rows, columns, log_a, dt_bias, state)
    return gated_delta_mixed_reference(mixed, rows, columns, log_a, dt_bias, state)


# -- reference -----------------------------------------------------------------------------


def gated_delta_mixed_reference(
    mixed: mx.array,
    rows: mx.array,
    columns: Columns,
    log_a: mx.array,
    dt_bias: mx.array,
    state: mx.array,
) -> tuple[mx.array, mx.array]:
    """Compute `gated_delta_mixed` in MLX operations."""
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

    This is an RMS norm, divided by the root of the width; `eps` of a sum is `eps / width` of a
    mean.
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
    """Compute `gated_delta` in one launch."""
    none = floats(0.0)
    tokens = (q, k.astype(q.dtype), v, log_g, beta.astype(log_g.dtype))
    return _launched(tokens, (0,) * 5, (none, none), state, k.shape[2], raw=False)


def gated_delta_mixed_kernel(
    mixed: mx.array,
    rows: mx.array,
    columns: Columns,
    log_a: mx.array,
    dt_bias: mx.array,
    state: mx.array,
) -> tuple[mx.array, mx.array]:
    """Compute `gated_delta_mixed` in one launch."""
    num_keys, width = _num_keys(mixed, state), state.shape[3]
    starts = (0, num_keys * width, 2 * num_keys * width, columns.decay, columns.rate)
    tokens = (mixed, mixed, mixed, rows, rows)
    return _launched(tokens, starts, (log_a, dt_bias), state, num_keys, raw=True)


def _launched(
    tokens: tuple[mx.array, ...],
    starts: tuple[int, ...],
    parameters: tuple[mx.array, mx.array],
    state: mx.array,
    num_keys: int,
    *,
    raw: bool,
) -> tuple[mx.array, mx.array]:
    """Launch the kernel.

    Args:
        tokens: Arrays that hold queries, keys, values and the two rates.
        starts: First column of each.
        parameters: `log_a` and `dt_bias`; the kernel reads them only if `raw`.
        state: As in `gated_delta`.
        num_keys: Key heads.
        raw: Whether the kernel norms queries and keys and makes rates of `a` and `b`.
    """
    q, _, v, a, _ = tokens
    depth, width = state.shape[2:]
    template = {
        "T": v.dtype,
        "TQ": q.dtype,
        "TV": v.dtype,
        "TA": a.dtype,
        "DK": width,
        "DV": depth,
        "RAW": raw,
    }
    return _SCAN.launch(
        tokens,
        starts,
        parameters,
        state,
        groups=num_keys,
        dtype=v.dtype,
        template=template,
        numbers=(_EPS,),
    )


def _num_keys(mixed: mx.array, state: mx.array) -> int:
    """Return the number of key heads in `mixed`."""
    _, num_heads, depth, width = state.shape
    return (mixed.shape[2] - num_heads * depth) // (2 * width)


def _check_plain(dtypes: tuple[mx.Dtype, ...], dims: tuple[int, ...], seed: int = 1) -> None:
    """Compare the kernel with its reference on rates and normed keys."""
    (dk, dv, dr), width = dtypes, dims[1]

    def arguments(length: int) -> tuple[mx.array, ...]:
        q, k, v, a, b, state = _drawn(length, dims, seed)
        q, k = _unit(q) * width**-0.5, _unit(k)
        log_g, beta = (-mx.exp(a)).astype(dr), mx.sigmoid(b).astype(dr)
        return q.astype(dk), k.astype(dk), v.astype(dv), log_g, beta, state

    compare(gated_delta_kernel, gated_delta_reference, arguments)


def _check_mixed(dtypes: tuple[mx.Dtype, ...], dims: tuple[int, ...], seed: int = 1) -> None:
    """Compare the kernel with its reference on rows of a projection."""

    def arguments(
        length: int,
    ) -> tuple[mx.array, mx.array, Columns, mx.array, mx.array, mx.array]:
        q, k, v, a, b, state = _drawn(length, dims, seed)
        mixed = mx.concatenate([x.flatten(2) for x in (q, k, v)], axis=-1).astype(dtypes[0])
        rows = mx.concatenate([b, a], axis=-1).astype(dtypes[2])
        return mixed, rows, Columns(decay=4, rate=0), mx.zeros(4), mx.ones(4), state

    compare(gated_delta_mixed_kernel, gated_delta_mixed_reference, arguments)


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
    return draw(seed, shapes)


dispatch.register("gated_delta", _check, [("mixed",), ("plain",)])
