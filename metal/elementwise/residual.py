"""Residual sums, each with the norm that follows."""

from __future__ import annotations

import functools
from typing import TypeAlias

import attrs
import mlx.core as mx

from ..runtime import dispatch
from ..runtime.launch import Kernel, Launch, Template, backend, floats
from .norms import Norm, ProbeNorm

_KERNEL = Kernel(
    "add_rms_norm", ("x", "delta", "weight", "delta_weight", "fp"), ("total", "out")
)
_WORD = 8
_MAX_THREADS = 512
_MAX_WORDS = 4
"""Most words of a thread, which keeps its part of a token in registers."""


def add_rms_norm_reference(
    x: mx.array, delta: mx.array, norm: Norm, delta_norm: Norm | None = None
) -> tuple[mx.array, mx.array]:
    """Compute `add_rms_norm` in MLX operations."""
    total = x + (delta if delta_norm is None else delta_norm(delta))
    return total, norm(total)


def add_rms_norm_kernel(
    x: mx.array, delta: mx.array, norm: Norm, delta_norm: Norm | None = None
) -> tuple[mx.array, mx.array]:
    """Compute `add_rms_norm` in one launch.

    Raises:
        ValueError: The kernel does not support the arguments.
    """
    kind, weights = _kind_of(x, delta, norm, delta_norm)
    plan = _plan(x.shape[0], *kind)
    if plan.unsupported is not None:
        raise ValueError(f"add_rms_norm: {plan.unsupported}")
    return _launched(plan.launch, x, delta, weights, norm, delta_norm)


def _launched(
    launch: Launch,
    x: mx.array,
    delta: mx.array,
    weights: tuple[mx.array, mx.array],
    norm: Norm,
    delta_norm: Norm | None,
) -> tuple[mx.array, mx.array]:
    eps = floats(norm.eps, 0.0 if delta_norm is None else delta_norm.eps)
    total, out = _KERNEL(x, delta, *weights, eps, launch=launch)
    return total, out


def add_rms_norm(
    x: mx.array, delta: mx.array, norm: Norm, delta_norm: Norm | None = None
) -> tuple[mx.array, mx.array]:
    """Return the sum `x + delta`, and the norm of the sum.

    Args:
        x: Residual stream `[T, W]`.
        delta: Output of a layer, `[T, W]`.
        norm: Norm of the sum.
        delta_norm: Norm of `delta` before the addition; None for none.

    Returns:
        Sum and norm, both `[T, W]`.
    """
    if not x.size or backend() is None:  # a step without logits has no rows here
        dispatch.record("add_rms_norm", "ops")
        return add_rms_norm_reference(x, delta, norm, delta_norm)
    kind, weights = _kind_of(x, delta, norm, delta_norm)
    plan = _plan(x.shape[0], *kind)
    check = functools.partial(_check, x, norm, delta_norm)
    if dispatch.takes_kernel("add_rms_norm", kind, check, unsupported=plan.unsupported):
        return _launched(plan.launch, x, delta, weights, norm, delta_norm)
    return add_rms_norm_reference(x, delta, norm, delta_norm)


@attrs.frozen
class _Plan:
    """Everything about a launch that depends on shapes and dtypes, not on values.

    Attributes:
        unsupported: Why the kernel cannot take the arguments, None if it can.
        launch: Grid, threadgroup, template and outputs.
    """

    unsupported: str | None
    launch: Launch


Kind: TypeAlias = tuple[int, mx.Dtype | None, bool, bool, bool]
"""Arguments of `_plan` without the number of tokens."""


def _kind_of(
    x: mx.array, delta: mx.array, norm: Norm, delta_norm: Norm | None
) -> tuple[Kind, tuple[mx.array, mx.array]]:
    """Return the kind of the arguments, and the norms' weights.

    The dtype is None if dtypes differ or a weight is missing; MLX computes such norms.
    """
    weight = norm.weight
    delta_weight = weight if delta_norm is None else delta_norm.weight
    dtype, width = x.dtype, x.shape[-1] if x.ndim == 2 else 0
    dtypes = {w if w is None else w.dtype for w in (weight, delta_weight, delta)}
    flags = (
        norm.zero_centred,
        delta_norm is not None,
        delta_norm is not None and delta_norm.zero_centred,
    )
    weights = (x if weight is None else weight, x if delta_weight is None else delta_weight)
    return (width, dtype if dtypes == {dtype} else None, *flags), weights


@functools.lru_cache(maxsize=1024)
def _plan(
    num_tokens: int,
    width: int,
    dtype: mx.Dtype | None,
    zero_centred: bool,
    normed: bool,
    delta_zero_centred: bool,
) -> _Plan:
    unsupported = None
    if dtype is None:
        unsupported = "stream, deltas and weights have several dtypes, or a norm has no weight"
    elif width % _WORD or not 0 < width <= _MAX_THREADS * _MAX_WORDS * _WORD:
        unsupported = f"rows of {width} elements, no multiple of {_WORD} or too long"
    threads = min(_MAX_THREADS, max(1, -(-width // (32 * _WORD))) * 32)
    template: Template = {
        "T": dtype or mx.float32,
        "W": width,
        "ZERO": zero_centred,
        "NORMED": normed,
        "DZERO": delta_zero_centred,
        "C": -(-width // (threads * _WORD)),
    }
    rows = ((num_tokens, width), dtype or mx.float32)
    launch = Launch(template, (threads * num_tokens, 1, 1), (threads, 1, 1), [rows, rows])
    return _Plan(unsupported, launch)


def _check(x: mx.array, norm: Norm, delta_norm: Norm | None, seed: int = 1) -> None:
    """Compare kernel and reference on three tokens, with the weights of the call."""
    rows, deltas = mx.random.normal((2, 3, x.shape[-1]), key=mx.random.key(seed)).astype(
        x.dtype
    )
    got = add_rms_norm_kernel(rows, deltas, norm, delta_norm)
    dispatch.compare(got, add_rms_norm_reference(rows, deltas, norm, delta_norm))


def _probe(dtype: mx.Dtype, width: int, normed: bool, seed: int = 1) -> None:
    weight = mx.random.normal((width,), key=mx.random.key(seed + 1)).astype(dtype)
    norm = ProbeNorm(weight, 1e-5, zero_centred=normed)
    delta_norm = ProbeNorm(2 * weight, 1e-6, zero_centred=False) if normed else None
    _check(mx.zeros((1, width), dtype), norm, delta_norm, seed)


dispatch.register("add_rms_norm", _probe, [(96, False), (1032, True)])
