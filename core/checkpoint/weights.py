"""The named weights of a checkpoint, before they are assigned to a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import attrs
import mlx.core as mx
import mlx.nn as nn

from ..errors import WeightError
from .lazy_tensor import LazyTensor
from .parameters import (
    GLOBAL_SCALES,
    assign,
    check_parameters,
    quantised_layers,
    read_parameters,
    wanted_parameters,
)
from .quantization import Quantization
from .regroup import place_of, regroup_layers, split_tensors, stack_tensors

Format: TypeAlias = Literal["safetensors", "gguf"]


@attrs.frozen(eq=False)
class Weights(Mapping[str, mx.array]):
    """Name -> tensor of a checkpoint.

    Immutable: `renamed`, `mapped`, `stacked` and `split` return new weights. `weights[name]`
    creates a fresh array each time, lazy for safetensors and dequantised at once for GGUF; an
    array belongs to the thread that reads it. Names and shapes are known without reading.

    Attributes:
        format: File format of the tensors. GGUF weights have Hugging Face names, but values in
            GGUF's own conventions.
        quantization: Quantisation of the checkpoint, or None.
        dtype: Dtype to which `load_into` casts floating parameters; None keeps stored dtypes.
    """

    format: Format
    quantization: Quantization | None
    dtype: mx.Dtype | None
    _tensors: Mapping[str, LazyTensor] = attrs.field(repr=False)

    def __getitem__(self, name: str) -> mx.array:
        return self._tensors[name].read()

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it.

        Raises:
            KeyError: There is no such tensor.
        """
        return self._tensors[name].shape

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors once they are read, floating ones cast to `dtype`."""
        return sum(self._bytes_of(tensor) for tensor in self._tensors.values())

    def _bytes_of(self, tensor: LazyTensor) -> int:
        floating = mx.issubdtype(tensor.dtype, mx.floating)
        dtype = self.dtype if floating and self.dtype is not None else tensor.dtype
        return math.prod(tensor.shape) * dtype.size

    def renamed(self, fn: Callable[[str], str | None]) -> Weights:
        """Return the weights under the names that `fn` returns; None drops a tensor.

        The quantisation of single layers is renamed along.

        Raises:
            WeightError: Two tensors would share a name.
        """
        tensors: dict[str, LazyTensor] = {}
        for name, tensor in self._tensors.items():
            new = fn(name)
            if new is None:
                continue
            if new in tensors:
                raise WeightError(
                    f"two tensors would be called {new!r}, {name!r} is one of them"
                )
            tensors[new] = tensor
        quantization = self.quantization and self.quantization.renamed(fn)
        return attrs.evolve(self, tensors=tensors, quantization=quantization)

    def mapped(self, fn: Callable[[str, mx.array], mx.array]) -> Weights:
        """Return the weights with `fn(name, tensor)` in place of each tensor.

        `fn` runs when a tensor is read, and once at the call with an unevaluated placeholder
        of the same shape. So `fn` must use MLX operations and must not inspect values.
        """

        def bound(name: str) -> Callable[[mx.array], mx.array]:
            return lambda array: fn(name, array)

        tensors = {name: tensor.mapped(bound(name)) for name, tensor in self._tensors.items()}
        return attrs.evolve(self, tensors=tensors)

    def stacked(self, component: str) -> Weights:
        """Return the weights with the numbered tensors below `component` stacked.

        `stacked("experts")` makes `….experts.3.up.weight` row 3 of `….experts.up.weight`.
        Scales and biases of quantised layers are stacked alike; tensors without a number are
        kept. A stack counts as one tensor for peak memory.

        Raises:
            WeightError: A number is missing, or the numbered tensors differ in shape or dtype.
        """

        def paths(path: str) -> Sequence[str]:
            place = place_of(path, component)
            return [path if place is None else place.stack]

        quantization = self.quantization and regroup_layers(self.quantization, paths)
        tensors = stack_tensors(self._tensors, component)
        return attrs.evolve(self, tensors=tensors, quantization=quantization)

    def split(self, fn: Callable[[str], Sequence[str] | None]) -> Weights:
        """Return the weights with fused tensors split into equal parts along their outputs.

        Scales and biases of quantised layers are split alike.

        Args:
            fn: Name -> names of the parts, first outputs first; None leaves a tensor whole.

        Raises:
            WeightError: A tensor has no such equal parts, or two tensors would share a name.
        """

        def paths(path: str) -> Sequence[str]:
            names = fn(f"{path}.weight")
            return [path] if names is None else [n.removesuffix(".weight") for n in names]

        quantization = self.quantization and regroup_layers(self.quantization, paths)
        tensors = split_tensors(self._tensors, fn)
        return attrs.evolve(self, tensors=tensors, quantization=quantization)

    def load_into(self, module: nn.Module, *, keep_float32: Sequence[str] = ()) -> None:
        """Assign every parameter of `module` its tensor, evaluated.

        Layers that the checkpoint stores quantised are replaced by their quantised forms.
        Floating parameters are cast to `dtype`. Packed weights, 8-bit scales and integers are
        never cast, and global scales are float32. Peak memory is all parameters and about one
        tensor.

        Args:
            module: The model, with parameters named as the tensors.
            keep_float32: Last name components, e.g. `A_log`, of parameters that stay float32
                for every `dtype`.

        Raises:
            WeightError: Tensors are missing, unexpected or of the wrong shape or type; all
                of them are named, and the module is unchanged.
        """

        def target(name: str) -> mx.Dtype | None:
            exact = name.rpartition(".")[2] in (*keep_float32, GLOBAL_SCALES)
            return mx.float32 if exact else self.dtype

        quantised: dict[str, nn.Module] = {}
        if self.quantization is not None:
            quantised = quantised_layers(
                module, self._tensors.keys(), self.quantization, self.dtype
            )
        check_parameters(wanted_parameters(module, quantised), self._tensors)
        assign(module, quantised, read_parameters(self._tensors, target))
