"""Heads of an attention layer, from its projections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import mlx.core as mx

from ..contract.heads import HeadShape, Norm, Projected, RopeSpec

__all__ = ["HeadShape", "Projected", "prepare"]

Rotate: TypeAlias = Callable[[mx.array, RopeSpec], mx.array]
"""Heads `[T, H, D]` -> heads of the same shape, rotated at the step's positions."""


def prepare(
    projected: Projected, rotate: Rotate
) -> tuple[mx.array, mx.array | None, mx.array | None]:
    """Return the heads of projections; the function defines the meaning of `Projected`.

    Args:
        projected: Projections of `T` tokens.
        rotate: `ForwardContext.rope`.

    Returns:
        Queries `[T, Hq, D]`, keys `[T, Hk, D]` and values `[T, Hk, Dv]`; None for keys and
        values where only queries were projected.
    """
    shape, rope = projected.shape, projected.rope
    parts = _parts(projected.parts, shape)
    q = _heads(parts[0], shape.query_stride)
    if shape.query_stride > shape.head_dim:
        q = q[..., : shape.head_dim]
    q = _normed(q, projected.q_norm)
    if not shape.kv_heads:
        return (q if rope is None else rotate(q, rope)), None, None
    k = _normed(_heads(parts[1], shape.head_dim), projected.k_norm)
    v = _normed(_heads(parts[2], shape.value_dim), projected.v_norm)
    if rope is not None:
        q, k = rotate(q, rope), rotate(k, rope)
    return q, k, v


def _parts(parts: Sequence[mx.array], shape: HeadShape) -> Sequence[mx.array]:
    """Return queries, keys and values as separate arrays `[T, W]`."""
    if len(parts) > 1:
        return parts
    row, (queries, keys, values) = parts[0], shape.ends
    if not shape.kv_heads:
        return [row[:, :queries]]
    return [row[:, :queries], row[:, queries:keys], row[:, keys:values]]


def _heads(x: mx.array, stride: int) -> mx.array:
    return x.reshape(x.shape[0], -1, stride)


def _normed(x: mx.array, norm: Norm | None) -> mx.array:
    return x if norm is None else norm(x)
