"""Layout of weights in memory, and the layers that multiply by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..elementwise.activations import Activation
from ..elementwise.norms import Norm
from ..runtime import device, launch
from .few_rows import few_rows_gated, few_rows_linear
from .geometry import MAX_ROWS

LARGE_WEIGHT = 64 << 20
"""Bytes above which matrix units pay with half as many rows."""


class InputMajorLinear(nn.Linear):
    """A linear layer whose weight lies in memory as the product reads it, input-major.

    Attributes:
        weight: `[out, in]`, a view.
        bias: `[out]`, if it has one.
    """

    @classmethod
    def of(cls, layer: nn.Linear) -> InputMajorLinear:
        """Return the layer with a rearranged weight."""
        own = cls(1, 1, bias=False)
        own._columns = mx.contiguous(layer.weight.T)
        own.weight = own._columns.T
        mx.eval(own._columns, own.weight)
        if "bias" in layer:
            own.bias = layer.bias
        return own

    def __call__(self, x: mx.array) -> mx.array:
        """Return `x @ weight.T + bias`."""
        if "bias" in self:
            return mx.addmm(self["bias"], x, self["_columns"])
        return x @ self["_columns"]


class FewRowsLinear(nn.Linear):
    """A linear layer with a kernel for 2 to `MAX_ROWS` rows, or 1 if norm, sum or gate join it.

    Attributes:
        weight: `[out, in]`, row-major.
        bias: `[out]`, if it has one.
    """

    @classmethod
    def of(cls, layer: nn.Linear) -> FewRowsLinear:
        """Return the layer with the same parameters."""
        own = cls(1, 1, bias=False)
        own.weight, own._columns = _both_ways(layer.weight)
        if "bias" in layer:
            own.bias = layer.bias
        return own

    def __call__(self, x: mx.array) -> mx.array:
        """Return `x @ weight.T + bias`."""
        rows = _few_rows(x, self["weight"], least=2)
        if rows is not None:
            out = few_rows_linear(rows, self["weight"], bias=self.get("bias"))
            return out if x.ndim == 2 else out.reshape(*x.shape[:-1], -1)
        if "bias" in self:
            return mx.addmm(self["bias"], x, self["_columns"])
        return x @ self["_columns"]


class FewRowsEmbedding(nn.Embedding):
    """An embedding that is the head as well, with a kernel for 2 to `MAX_ROWS` rows.

    Attributes:
        weight: `[num_embeddings, dims]`, row-major.
    """

    @classmethod
    def of(cls, layer: nn.Embedding) -> FewRowsEmbedding:
        """Return the layer with the same parameters."""
        own = cls(1, 1)
        own.weight, own._columns = _both_ways(layer.weight)
        return own

    def as_linear(self, x: mx.array) -> mx.array:
        """Return `x @ weight.T`."""
        rows = _few_rows(x, self["weight"], least=2)
        if rows is None:
            return x @ self["_columns"]
        out = few_rows_linear(rows, self["weight"])
        return out if x.ndim == 2 else out.reshape(*x.shape[:-1], -1)


def normed_projection(layer: nn.Module, x: mx.array, norm: Norm) -> mx.array | None:
    """Return `layer(norm(x))` in one launch, None if no kernel applies.

    Args:
        layer: A layer of any class.
        x: `[T, in]`.
        norm: Norm of the last axis of `x`.

    Returns:
        `[T, out]`. None if the layer is of another class, there are too many rows, or the norm
        has no weight.
    """
    if not _fuses(layer, x) or norm.weight is None:
        return None
    return few_rows_linear(x, layer["weight"], bias=layer.get("bias"), norm=norm)


def added_projection(layer: nn.Module, x: mx.array, residual: mx.array) -> mx.array | None:
    """Return `residual + layer(x)` in one launch, None if no kernel applies.

    Args:
        layer: A layer of any class.
        x: `[T, in]`, or `[T, H, D]` with `in = H * D`.
        residual: `[T, out]`.

    Returns:
        `[T, out]`. None if the layer is of another class or there are too many rows.
    """
    if not _fuses(layer, x):
        return None
    return few_rows_linear(x, layer["weight"], bias=layer.get("bias"), residual=residual)


def gated_projection(
    layer: nn.Module, x: mx.array, activation: Activation = "silu", norm: Norm | None = None
) -> mx.array | None:
    """Return `activation(gate) * up` in one launch, None if no kernel applies.

    Args:
        layer: Joined gate and up projection, the outputs of the gate first.
        x: `[T, in]`.
        activation: Function that is applied to the gate.
        norm: Norm of `x` before the projection, None for none.

    Returns:
        `[T, hidden]`. None if the layer is of another class, there are too many rows, or the
        norm has no weight.
    """
    if not _fuses(layer, x) or (norm is not None and norm.weight is None):
        return None
    return few_rows_gated(x, layer["weight"], activation, bias=layer.get("bias"), norm=norm)


def prefer_layout(model: nn.Module) -> None:
    """Replace the linear layers of a model by the classes that are fastest on this device.

    On a CPU, `x @ w.T` reads a weight `[out, in]` across its rows. With a weight stored
    input-major, a product of few rows takes 10 to 25 % less time. Where kernels run, layers and
    embeddings get the kernel for few rows. Parameters keep names, shapes and values.
    """
    if launch.backend() is not None:
        _replace(model, {nn.Linear: FewRowsLinear.of, nn.Embedding: FewRowsEmbedding.of})
    elif not device.is_gpu():
        _replace(model, {nn.Linear: InputMajorLinear.of})


def _fuses(layer: nn.Module, x: mx.array) -> bool:
    """Whether one launch can compute the product with a norm, sum or gate, from 1 row on."""
    return isinstance(layer, FewRowsLinear) and _is_few(x.shape[0], layer["weight"], 1)


def _few_rows(x: mx.array, weight: mx.array, *, least: int) -> mx.array | None:
    """Return the rows of `x`, `[M, in]`, None if MLX's product is faster for them.

    For one row MLX has a kernel as well, whose launch costs less host time.
    """
    if not _is_few(x.size // x.shape[-1], weight, least):
        return None
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def _is_few(num_rows: int, weight: mx.array, least: int) -> bool:
    most = MAX_ROWS if weight.nbytes <= LARGE_WEIGHT else MAX_ROWS // 2
    return least <= num_rows <= most


def _both_ways(weight: mx.array) -> tuple[mx.array, mx.array]:
    """Return a row-major weight `[out, in]`, and its transpose in the same memory.

    The transpose is made once, because a view is an operation of every step. A kernel gets the
    weight itself, because MLX copies views for kernels.
    """
    rows = mx.contiguous(weight)
    columns = rows.T
    mx.eval(rows, columns)
    return rows, columns


def _replace(holder: Any, substitutes: dict[type, Callable[[Any], nn.Module]]) -> None:
    """Replace modules of exactly these types in `holder` and below, in order."""
    items = list(enumerate(holder) if isinstance(holder, list) else holder.items())
    for key, child in items:
        if isinstance(key, str) and key.startswith("_"):
            continue
        if type(child) in substitutes:
            holder[key] = substitutes[type(child)](child)
        elif isinstance(child, (dict, list)):
            _replace(child, substitutes)
