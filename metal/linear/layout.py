"""How weights lie in memory, and what multiplies by them."""

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
"""Bytes of a weight from where on matrix units pay with half as many rows."""


class InputMajorLinear(nn.Linear):
    """A linear layer that multiplies by what lies in memory, not by its transpose.

    Attributes:
        weight: `[out, in]`, a view.
        bias: `[out]`, if it has one.
    """

    @classmethod
    def of(cls, layer: nn.Linear) -> InputMajorLinear:
        """Return the layer, its weight stored anew."""
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
    """A linear layer with a kernel for few rows: two to `MAX_ROWS`, or one with more to do.

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
    """An embedding whose transpose, the head, has a kernel for two to `MAX_ROWS` rows.

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
    """Return `layer(norm(x))` in one launch, None if no kernel does that.

    Args:
        layer: Any.
        x: `[T, in]`.
        norm: Of its last axis.

    Returns:
        `[T, out]`, or None: the layer is of another kind, the rows are too many, or the norm
        has no weight.
    """
    if not _fuses(layer, x) or norm.weight is None:
        return None
    return few_rows_linear(x, layer["weight"], bias=layer.get("bias"), norm=norm)


def added_projection(layer: nn.Module, x: mx.array, residual: mx.array) -> mx.array | None:
    """Return `residual + layer(x)` in one launch, None if no kernel does that.

    Args:
        layer: Any.
        x: `[T, in]`, or `[T, H, D]` with `in` elements a row.
        residual: `[T, out]`.

    Returns:
        `[T, out]`, or None: the layer is of another kind, or the rows are too many.
    """
    if not _fuses(layer, x):
        return None
    return few_rows_linear(x, layer["weight"], bias=layer.get("bias"), residual=residual)


def gated_projection(
    layer: nn.Module, x: mx.array, activation: Activation = "silu", norm: Norm | None = None
) -> mx.array | None:
    """Return `activation(gate) * up` in one launch, None if no kernel does that.

    Args:
        layer: Gate and up projection joined, the gate's outputs first.
        x: `[T, in]`.
        activation: Of the gate.
        norm: Of `x` before the projection, None for none.

    Returns:
        `[T, hidden]`, or None: the layer is of another kind, the rows are too many, or the
        norm has no weight.
    """
    if not _fuses(layer, x) or (norm is not None and norm.weight is None):
        return None
    return few_rows_gated(x, layer["weight"], activation, bias=layer.get("bias"), norm=norm)


def prefer_layout(model: nn.Module) -> None:
    """Put what is faster here in the place of a model's linear layers.

    On a CPU `x @ w.T` reads a weight `[out, in]` against its grain; stored input-major, a
    product with few rows takes 10 to 25 % less time. Where kernels run, layers and embeddings
    get one for few rows. Parameters keep their names, shapes and values.
    """
    if launch.backend() is not None:
        _replace(model, {nn.Linear: FewRowsLinear.of, nn.Embedding: FewRowsEmbedding.of})
    elif not device.is_gpu():
        _replace(model, {nn.Linear: InputMajorLinear.of})


def _fuses(layer: nn.Module, x: mx.array) -> bool:
    """Whether a product is made by a kernel that does more besides; of one row, too."""
    return isinstance(layer, FewRowsLinear) and _is_few(x.shape[0], layer["weight"], 1)


def _few_rows(x: mx.array, weight: mx.array, *, least: int) -> mx.array | None:
    """Return the rows of `x`, `[M, in]`, None if MLX's product is better for them.

    For one row that is another kernel as well, and costs the host less to launch.
    """
    if not _is_few(x.size // x.shape[-1], weight, least):
        return None
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def _is_few(num_rows: int, weight: mx.array, least: int) -> bool:
    most = MAX_ROWS if weight.nbytes <= LARGE_WEIGHT else MAX_ROWS // 2
    return least <= num_rows <= most


def _both_ways(weight: mx.array) -> tuple[mx.array, mx.array]:
    """Return a weight `[out, in]`, row-major, and its transpose in the same memory.

    A view made by each step would be an operation; one that a kernel takes would be copied.
    """
    rows = mx.contiguous(weight)
    columns = rows.T
    mx.eval(rows, columns)
    return rows, columns


def _replace(holder: Any, substitutes: dict[type, Callable[[Any], nn.Module]]) -> None:
    """Replace modules of exactly these types, one after the other, in `holder` and below."""
    items = list(enumerate(holder) if isinstance(holder, list) else holder.items())
    for key, child in items:
        if isinstance(key, str) and key.startswith("_"):
            continue
        if type(child) in substitutes:
            holder[key] = substitutes[type(child)](child)
        elif isinstance(child, (dict, list)):
            _replace(child, substitutes)
