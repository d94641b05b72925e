"""Rotary position embeddings: the rotation; `rope_config` has what config.json says of it."""

from __future__ import annotations

import functools

import mlx.core as mx

from ..contract.forward import RopeSpec
from ..metal.attention.heads import Turns
from ..metal.runtime.fusion import fused
from .rope_config import base_frequencies


@functools.cache
def _columns(spec: RopeSpec, width: int) -> tuple[mx.array, mx.array, mx.array]:
    """Return frequency, factor of the cosine and of the sine of each element, `[width]`.

    The sine's is negative where an element loses its partner's share. Elements that are not
    rotated have the frequency 0 and gain nothing.
    """
    freq = list(spec.inv_freq or base_frequencies(spec.dims, spec.theta))
    half, rest = spec.dims // 2, [0.0] * (width - spec.dims)
    signs = [-spec.scale] * half + [spec.scale] * half
    both = freq + freq
    if spec.interleaved:
        both = [f for f in freq for _ in range(2)]
        signs = [-spec.scale, spec.scale] * half
    gains = [spec.scale] * spec.dims + [1.0 for _ in rest]
    columns = [mx.array(c, mx.float32) for c in (both + rest, gains, signs + rest)]
    mx.eval(columns)
    return columns[0], columns[1], columns[2]


@functools.cache
def _halves(spec: RopeSpec) -> tuple[mx.array, mx.array]:
    """Return frequencies `[dims]`, twice each, and which of them are the cosines'."""
    freq = mx.array([*(spec.inv_freq or base_frequencies(spec.dims, spec.theta))] * 2)
    is_cos = mx.array([True] * (spec.dims // 2) + [False] * (spec.dims // 2))
    mx.eval(freq, is_cos)
    return freq, is_cos


@fused
def _blend(x: mx.array, partners: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    return x * cos + partners * sin


def _partners(x: mx.array, spec: RopeSpec) -> mx.array:
    """Return `x [T, H, D]` with the elements of each rotated pair exchanged."""
    half = spec.dims // 2
    if not spec.interleaved:
        parts = [x[..., half : spec.dims], x[..., :half]]
    else:
        pairs = x[..., : spec.dims].reshape(*x.shape[:-1], half, 2)
        parts = [pairs[..., ::-1].reshape(*x.shape[:-1], spec.dims)]
    if spec.dims < x.shape[-1]:
        parts.append(x[..., spec.dims :])
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-1)


class Rotation:
    """Rotates heads at the positions of one step; a table is made once a spec and dtype.

    Angles are computed in float32, as every implementation of the families does.
    """

    def __init__(self, positions: mx.array) -> None:
        self._positions = positions
        self._turns: dict[RopeSpec, Turns] = {}
        self._tables: dict[tuple[RopeSpec, int, mx.Dtype], tuple[mx.array, mx.array]] = {}

    def _table(self, spec: RopeSpec, width: int, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
        """Return the factors `[T, 1, width]` of elements and of their partners, in `dtype`."""
        table = self._tables.get((spec, width, dtype))
        if table is None:
            freq, gains, signs = _columns(spec, width)
            angles = self._positions[:, None, None].astype(mx.float32) * freq
            table = self._tables[spec, width, dtype] = (
                (mx.cos(angles) * gains).astype(dtype),
                (mx.sin(angles) * signs).astype(dtype),
            )
        return table

    def __call__(self, x: mx.array, spec: RopeSpec) -> mx.array:
        """Return `x [T, H, D]` with its first `spec.dims` elements rotated."""
        return _blend(x, _partners(x, spec), *self._table(spec, x.shape[-1], x.dtype))

    def turns(self, spec: RopeSpec) -> Turns:
        """Return the same rotation as kernels take it."""
        if spec not in self._turns:
            freq, is_cos = _halves(spec)
            angles = self._positions[:, None].astype(mx.float32) * freq
            # element by element, so that it can be one launch: a concatenation could not
            factors = mx.where(is_cos, mx.cos(angles), mx.sin(angles)) * spec.scale
            self._turns[spec] = Turns(factors, spec.interleaved)
        return self._turns[spec]
