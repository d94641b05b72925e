"""Linear layers with one input, computed as one product: few tokens pay for each product."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as nn

from .stream import Input, Normed, project

_TENSORS = ("weight", "scales", "biases", "bias")
_TRAITS = ("group_size", "bits", "mode")


class JointModule(nn.Module):
    """A module in which some linear layers read the same input.

    Parameters are named as in a checkpoint until `join_layers`, which replaces equal kinds of
    layers by one joined layer. `project` computes the layers in either state.

    Attributes:
        JOINT: Names of the layers, in the order of `project`.
    """

    JOINT: ClassVar[Sequence[str]]

    def project(self, x: mx.array) -> Sequence[mx.array]:
        """Return the output of each layer of `JOINT` for `x [..., in]`."""
        joined = self.get("joined")
        if joined is None:
            return [self[name](x) for name in self.JOINT]
        parts: Any = mx.split(joined(x), self._cuts, axis=-1)
        return parts

    def project_parts(self, x: Input) -> tuple[mx.array, ...]:
        """Return one joined `[..., out]`, or one array for each layer of `JOINT`.

        For callers that accept both forms: nothing is split, and nothing is copied.
        """
        joined = self.get("joined")
        if joined is not None:
            return (project(joined, x),)
        rows = x.computed() if isinstance(x, Normed) else x
        return tuple(self[name](rows) for name in self.JOINT)

    def project_joined(self, x: Input) -> mx.array:
        """Return the outputs of `project` side by side in one array `[..., out]`."""
        parts = self.project_parts(x)
        return parts[0] if len(parts) == 1 else mx.concatenate([*parts], axis=-1)

    def join(self) -> None:
        """Join the layers, unless they differ in kind, quantisation or dtype."""
        layers = [self[name] for name in self.JOINT]
        if len({_kind(layer) for layer in layers}) > 1:
            return
        widths = [layer.weight.shape[0] for layer in layers]
        self._cuts = tuple(itertools.accumulate(widths[:-1]))
        self.joined = _joined(layers)
        for name in self.JOINT:
            del self[name]


def join_layers(model: nn.Module) -> None:
    """Join the layers of every `JointModule` in `model`, one module after the other."""
    for module in list(model.modules()):
        if isinstance(module, JointModule):
            module.join()


def _kind(layer: Any) -> tuple[Any, ...]:
    """Return the traits that must be equal for layers to be joined."""
    dtypes = [(name, layer[name].dtype) for name in _TENSORS if name in layer]
    traits = [getattr(layer, name, None) for name in _TRAITS]
    return (type(layer), str(dtypes), layer.weight.shape[1:], *traits)


def _joined(layers: Sequence[Any]) -> nn.Module:
    """Return the layer whose outputs are the outputs of `layers`, concatenated."""
    first = layers[0]
    if isinstance(first, nn.QuantizedLinear):
        traits = {name: getattr(first, name) for name in _TRAITS}
        joined: nn.Module = nn.QuantizedLinear(128, 1, bias=False, **traits)
    else:
        joined = nn.Linear(1, 1, bias=False)
    for name in _TENSORS:
        if name in first:
            joined[name] = mx.concatenate([layer[name] for layer in layers])
        else:
            joined.pop(name, None)
    mx.eval(joined.parameters())
    return joined
