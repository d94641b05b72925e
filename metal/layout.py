"""How weights lie in memory."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from . import device


def prefer_input_major(model: nn.Module) -> None:
    """Store the matrices of a model's linear layers input-major, if that is faster here.

    On a CPU `x @ w.T` reads a weight `[out, in]` against its grain; stored the other way
    round, a product with few rows takes 10 to 25 % less time. Shapes and values stay: only
    strides change. On a GPU nothing is done.
    """
    if device.is_gpu():
        return
    for layer in model.modules():
        if type(layer) is nn.Linear:
            layer.weight = mx.contiguous(layer.weight.T).T
            mx.eval(layer.weight)
