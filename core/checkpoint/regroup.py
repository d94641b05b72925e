"""Stacking and splitting of tensors by name, before any tensor is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import mlx.core as mx

from ..errors import WeightError
from .lazy_tensor import LazyTensor
from .parameters import GLOBAL_SCALES
from .quantization import LayerQuantization, Quantization


@attrs.frozen
class Place:
    """The place of a numbered tensor in a stack.

    Attributes:
        stack: Name of the stack.
        index: Index of the tensor in the stack.
    """

    stack: str
    index: int


def place_of(name: str, component: str) -> Place | None:
    """Return the place of `….component.3.rest` in `….component.rest`; None for other names."""
    numbered = rf"((?:.+\.)?{re.escape(component)})\.(0|[1-9]\d*)\.(.+)"
    match = re.fullmatch(numbered, name)
    return Place(f"{match[1]}.{match[3]}", int(match[2])) if match else None


def _add(tensors: dict[str, LazyTensor], name: str, tensor: LazyTensor) -> None:
    if name in tensors:
        raise WeightError(f"two tensors would be called {name!r}")
    tensors[name] = tensor


def _read_stack(parts: Sequence[LazyTensor]) -> mx.array:
    return mx.stack([part.read() for part in parts])


def _stack(name: str, parts: Mapping[int, LazyTensor]) -> LazyTensor:
    missing = [index for index in range(max(parts)) if index not in parts]
    if missing:
        raise WeightError(
            f"{name}: cannot be stacked without number {missing[0]}", missing=[name]
        )
    ordered = [parts[index] for index in range(len(parts))]
    first = ordered[0]
    for index, part in enumerate(ordered):
        if (part.shape, part.dtype) != (first.shape, first.dtype):
            sentence = (
                f"{name}: cannot be stacked, number {index} is {list(part.shape)} {part.dtype} "
                f"and number 0 {list(first.shape)} {first.dtype}"
            )
            raise WeightError(sentence, mismatched=[sentence])
    return LazyTensor((len(ordered), *first.shape), first.dtype, partial(_read_stack, ordered))


def stack_tensors(tensors: Mapping[str, LazyTensor], component: str) -> dict[str, LazyTensor]:
    """Return the tensors with numbered tensors below `component` stacked, in their order.

    Raises:
        WeightError: A number is missing, two of the numbered tensors differ in shape or dtype,
            or a stack has the name of another tensor.
    """
    stacked: dict[str, LazyTensor] = {}
    numbered: dict[str, dict[int, LazyTensor]] = {}  # name of the stack -> number -> tensor
    for name, tensor in tensors.items():
        place = place_of(name, component)
        if place is None:
            stacked[name] = tensor
        else:
            numbered.setdefault(place.stack, {})[place.index] = tensor
    for name, parts in numbered.items():
        _add(stacked, name, _stack(name, parts))
    return stacked


def _part(index: int, num_parts: int, tensor: mx.array) -> mx.array:
    return mx.split(tensor, num_parts, axis=-2)[index]


def split_tensors(
    tensors: Mapping[str, LazyTensor], fn: Callable[[str], Sequence[str] | None]
) -> dict[str, LazyTensor]:
    """Return the tensors, each split into equal parts if `fn` returns several names.

    The split is along the second-to-last axis: the outputs of a matrix.

    Raises:
        WeightError: The outputs do not divide into the parts, or two tensors share a name.
    """
    result: dict[str, LazyTensor] = {}
    for name, tensor in tensors.items():
        names = fn(name)
        if names is None:
            _add(result, name, tensor)
            continue
        if name.endswith(f".{GLOBAL_SCALES}"):  # every part keeps the factor of the whole
            for new in names:
                _add(result, new, tensor)
            continue
        if len(tensor.shape) < 2 or tensor.shape[-2] % len(names):
            sentence = f"{name}: {list(tensor.shape)} cannot be cut into {len(names)} parts"
            raise WeightError(sentence, mismatched=[sentence])
        for index, new in enumerate(names):
            _add(result, new, tensor.mapped(partial(_part, index, len(names))))
    return result


def regroup_layers(
    quantization: Quantization, paths: Callable[[str], Sequence[str]]
) -> Quantization:
    """Return the quantisation of modules after their tensors were regrouped.

    Args:
        quantization: Quantisation of the checkpoint.
        paths: Path of a module in the checkpoint -> paths of its stack or of its parts.

    Raises:
        WeightError: Parts of one module are quantised differently.
    """
    layers: dict[str, LayerQuantization | None] = {}
    for path, layer in quantization.layers.items():
        for new in paths(path):
            if layers.setdefault(new, layer) != layer:
                raise WeightError(
                    f"{new}: the parts are quantised differently, {path} among them"
                )
    return attrs.evolve(quantization, layers=layers)
