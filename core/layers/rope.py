"""Rotary position embeddings: the rotation. `rope_config` reads config.json."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import attrs
import mlx.core as mx

from ..contract.forward import RopeSpec
from ..metal.attention.heads import Turns
from ..metal.runtime.fusion import fused
from .rope_config import base_frequencies


@attrs.frozen(eq=False)
class _Columns:
    """Frequency and axis of each element of a head, `[W]` each.

    Attributes:
        freq: Frequency, float32; 0 for an element that is not rotated.
        axis: Axis of the positions, int32; None if all elements use the first axis.
    """

    freq: mx.array
    axis: mx.array | None

    @classmethod
    def of(cls, spec: RopeSpec, pairs: Sequence[int], num_rest: int = 0) -> _Columns:
        """Return the columns of elements, from the pair of each element.

        Args:
            spec: The rotation.
            pairs: Index of the pair of each rotated element.
            num_rest: Number of elements behind them that are not rotated.
        """
        freqs = spec.inv_freq or base_frequencies(spec.dims, spec.theta)
        axes = spec.axes or ()
        freq = mx.array([freqs[i] for i in pairs] + [0.0] * num_rest, mx.float32)
        axis = mx.array([axes[i] for i in pairs] + [0] * num_rest) if any(axes) else None
        mx.eval(freq, axis)
        return cls(freq, axis)

    def angles(self, positions: mx.array) -> mx.array:
        """Return the angles `[T, W]`, float32, at positions `[T]` or `[A, T]`."""
        if positions.ndim == 2:
            if self.axis is not None and positions.shape[0] > 1:
                return positions[self.axis].T.astype(mx.float32) * self.freq
            positions = positions[0]
        return positions[:, None].astype(mx.float32) * self.freq


@functools.cache
def _columns(spec: RopeSpec, width: int) -> tuple[_Columns, mx.array, mx.array]:
    """Return the columns `[width]` and each element's factor of the cosine and of the sine.

    The sine's factor is negative where the partner's share is subtracted. Elements without a
    rotation have the frequency 0 and the sine's factor 0.
    """
    half, num_rest = spec.dims // 2, width - spec.dims
    signs = [-spec.scale] * half + [spec.scale] * half
    if spec.interleaved:
        signs = [-spec.scale, spec.scale] * half
    gains = [spec.scale] * spec.dims + [1.0] * num_rest
    factors = [mx.array(c, mx.float32) for c in (gains, signs + [0.0] * num_rest)]
    mx.eval(factors)
    pairs = [i // 2 if spec.interleaved else i % half for i in range(spec.dims)]
    return _Columns.of(spec, pairs, num_rest), factors[0], factors[1]


@functools.cache
def _halves(spec: RopeSpec) -> tuple[_Columns, mx.array]:
    """Return the pairs' columns twice, `[dims]`, and a mask of the first copy, for cosines."""
    half = spec.dims // 2
    is_cos = mx.array([True] * half + [False] * half)
    mx.eval(is_cos)
    return _Columns.of(spec, [*range(half)] * 2), is_cos


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
    """Rotates heads at the positions of one step; a table is made once for a spec and dtype.

    Angles are float32, as in every reference implementation of the families.
    """

    def __init__(self, positions: mx.array) -> None:
        """Prepare the rotation of a step.

        Args:
            positions: `[T]`, or `[A, T]` for several axes; see `StepBatch.rotary`.
        """
        self._positions = positions
        self._turns: dict[RopeSpec, Turns] = {}
        self._tables: dict[tuple[RopeSpec, int, mx.Dtype], tuple[mx.array, mx.array]] = {}

    def _table(self, spec: RopeSpec, width: int, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
        """Return factors `[T, 1, width]` for elements and for their partners, in `dtype`."""
        table = self._tables.get((spec, width, dtype))
        if table is None:
            columns, gains, signs = _columns(spec, width)
            angles = columns.angles(self._positions)[:, None]
            table = self._tables[spec, width, dtype] = (
                (mx.cos(angles) * gains).astype(dtype),
                (mx.sin(angles) * signs).astype(dtype),
            )
        return table

    def __call__(self, x: mx.array, spec: RopeSpec) -> mx.array:
        """Return `x [T, H, D]` with its first `spec.dims` elements rotated."""
        return _blend(x, _partners(x, spec), *self._table(spec, x.shape[-1], x.dtype))

    def turns(self, spec: RopeSpec) -> Turns:
        """Return the rotation as kernels read it."""
        if spec not in self._turns:
            columns, is_cos = _halves(spec)
            angles = columns.angles(self._positions)
            # `where` fuses into one launch with its inputs; a concatenation would not
            factors = mx.where(is_cos, mx.cos(angles), mx.sin(angles)) * spec.scale
            self._turns[spec] = Turns(factors, spec.interleaved)
        return self._turns[spec]
