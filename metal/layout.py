"""How weights lie in memory."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from . import device


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


def prefer_input_major(model: nn.Module) -> None:
    """Store the matrices of a model's linear layers input-major, if that is faster here.

    On a CPU `x @ w.T` reads a weight `[out, in]` against its grain; stored the other way
    round, a product with few rows takes 10 to 25 % less time. Parameters keep their names,
    shapes and values. On a GPU nothing is done.
    """
    if device.is_gpu():
        return
    for module in model.modules():
        for name, child in module.children().items():
            if type(child) is nn.Linear:
                module[name] = InputMajorLinear.of(child)
