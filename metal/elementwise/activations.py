"""Gated activations of joined projections."""

from __future__ import annotations

import functools
from typing import Literal, TypeAlias

import mlx.core as mx

from ..runtime import dispatch
from ..runtime.fusion import fused
from ..runtime.launch import Kernel, Launch, ints

Activation: TypeAlias = Literal["silu", "gelu_tanh"]

_KERNEL = Kernel("gated_activation", ("joined", "ip"), ("out",))
_CODES: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1}


@fused
def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """Return `silu(gate) * up`."""
    return gate * mx.sigmoid(gate) * up


@fused
def _gelu_tanh(gate: mx.array, up: mx.array) -> mx.array:
    inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
    return 0.5 * gate * (1 + mx.tanh(inner)) * up


def gated_activation_reference(joined: mx.array, activation: Activation) -> mx.array:
    """Return `activation(gate) * up` in MLX operations; see `gated_activation`."""
    gate, up = mx.split(joined, 2, axis=-1)
    return (swiglu if activation == "silu" else _gelu_tanh)(gate, up)


def gated_activation_kernel(joined: mx.array, activation: Activation) -> mx.array:
    """Return `activation(gate) * up` in one launch; see `gated_activation`."""
    num_tokens, width = joined.shape[0], joined.shape[1] // 2
    launch = Launch(
        template={"T": joined.dtype, "ACT": _CODES[activation]},
        grid=(width // 4, num_tokens, 1),
        threadgroup=(min(256, -(-(width // 4) // 32) * 32), 1, 1),
        outputs=[((num_tokens, width), joined.dtype)],
    )
    return _KERNEL(joined, ints(num_tokens, width), launch=launch)[0]


def gated_activation(joined: mx.array, activation: Activation = "silu") -> mx.array:
    """Return `activation(gate) * up`. Each row holds its gates, then its ups.

    Args:
        joined: `[T, 2 * H]`; the first `H` columns are gates.
        activation: Function that is applied to the gates.

    Returns:
        `[T, H]`, in the dtype of `joined`.
    """
    width = joined.shape[1] // 2
    unsupported = f"a width of {width} is not a multiple of 4" if width % 4 else None
    check = functools.partial(_check, joined.dtype, activation)
    variant = (joined.dtype, activation)
    if dispatch.takes_kernel("gated_activation", variant, check, unsupported=unsupported):
        return gated_activation_kernel(joined, activation)
    return gated_activation_reference(joined, activation)


def _check(dtype: mx.Dtype, activation: Activation, seed: int = 1) -> None:
    # a row needs several threadgroups, and the last one is not full
    joined = mx.random.normal((3, 2080), key=mx.random.key(seed)).astype(dtype)
    got = gated_activation_kernel(joined, activation)
    dispatch.compare([got], [gated_activation_reference(joined, activation)])


dispatch.register("gated_activation", _check, [("silu",), ("gelu_tanh",)])
