"""Assignment of tensors to a module: all are checked first, then read, then assigned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, cast, runtime_checkable

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from ..errors import WeightError
from .cast_embedding import CastEmbedding
from .lazy_tensor import LazyTensor
from .quantization import LayerQuantization, Quantization

_MAX_SHOWN = 8


@runtime_checkable
class Quantizable(Protocol):
    """A layer with a quantised form, such as `nn.Linear` and `nn.Embedding`."""

    def to_quantized(self, *, group_size: int, bits: int, mode: str) -> nn.Module:
        """Return the layer's quantised form."""
        ...


GLOBAL_SCALES = "global_scales"
"""Name of NVFP4's optional factors beside the scales, one for each expert."""


@runtime_checkable
class GloballyScaled(Protocol):
    """A quantised layer whose outputs may have one factor for each expert."""

    def expect_global_scales(self) -> bool:
        """Add the parameter `global_scales`; return whether the layer's mode has it."""
        ...


def _quantise(
    path: str, layer: Quantizable, how: LayerQuantization, dtype: mx.Dtype | None
) -> nn.Module:
    try:
        quantised = layer.to_quantized(group_size=how.group_size, bits=how.bits, mode=how.mode)
    except ValueError as error:
        reason = f"{path}: cannot be quantised as config.json says: {error}"
        raise WeightError(reason, mismatched=[reason]) from error
    if isinstance(quantised, nn.QuantizedEmbedding) and how.mode != "affine" and dtype:
        return CastEmbedding(quantised, dtype)
    return quantised


def quantised_layers(
    module: nn.Module,
    stored: Collection[str],
    quantization: Quantization,
    dtype: mx.Dtype | None,
) -> dict[str, nn.Module]:
    """Return path -> quantised form for each layer that the checkpoint stores quantised.

    The module is not changed, and no array is evaluated.

    Args:
        module: The model.
        stored: Names of the checkpoint's tensors.
        quantization: The quantisation of config.json.
        dtype: The model's compute dtype.

    Raises:
        WeightError: A layer's rows are no multiple of the group size.
    """
    layers: dict[str, nn.Module] = {}
    for path, layer in module.named_modules():
        if not isinstance(layer, Quantizable):
            continue
        how = quantization.of(path, has_scales=f"{path}.scales" in stored)
        if how is None:
            continue
        layers[path] = quantised = _quantise(path, layer, how, dtype)
        # without a layer for the factors, the tensor is later reported as unexpected by name
        if f"{path}.{GLOBAL_SCALES}" in stored and isinstance(quantised, GloballyScaled):
            quantised.expect_global_scales()
    return layers


def _parameters(module: nn.Module) -> dict[str, mx.array]:
    return dict(cast("list[tuple[str, mx.array]]", tree_flatten(module.parameters())))


def wanted_parameters(
    module: nn.Module, quantised: Mapping[str, nn.Module]
) -> dict[str, mx.array]:
    """Return name -> parameter of `module` with the layers of `quantised` put in."""
    wanted = {
        name: value
        for name, value in _parameters(module).items()
        if name.rpartition(".")[0] not in quantised
    }
    for path, layer in quantised.items():
        wanted.update({f"{path}.{name}": v for name, v in _parameters(layer).items()})
    return wanted


def _is_floating(dtype: mx.Dtype) -> bool:
    return mx.issubdtype(dtype, mx.floating)


def _mismatch(name: str, wanted: mx.array, tensor: LazyTensor) -> str | None:
    both_floating = _is_floating(wanted.dtype) and _is_floating(tensor.dtype)
    if wanted.shape == tensor.shape and (both_floating or wanted.dtype == tensor.dtype):
        return None
    kind = "of a floating type" if _is_floating(wanted.dtype) else f"of {_name(wanted.dtype)}"
    return (
        f"{name}: the checkpoint has shape {list(tensor.shape)} of {_name(tensor.dtype)}, "
        f"the model needs shape {list(wanted.shape)} {kind}"
    )


def _name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")


def _list(what: str, items: Sequence[str]) -> str:
    more = f", and {len(items) - _MAX_SHOWN} more" if len(items) > _MAX_SHOWN else ""
    return f"{len(items)} {what} ({', '.join(items[:_MAX_SHOWN])}{more})"


def check_parameters(wanted: Mapping[str, mx.array], tensors: Mapping[str, LazyTensor]) -> None:
    """Compare the tensors with the parameters, name by name.

    Raises:
        WeightError: Tensors are missing, unexpected or mismatched; all of them are named.
    """
    missing = sorted(wanted.keys() - tensors.keys())
    unexpected = sorted(tensors.keys() - wanted.keys())
    common = sorted(wanted.keys() & tensors.keys())
    sentences = (_mismatch(name, wanted[name], tensors[name]) for name in common)
    mismatched = [sentence for sentence in sentences if sentence is not None]
    kinds = {"missing": missing, "unexpected": unexpected, "mismatched": mismatched}
    findings = [_list(what, items) for what, items in kinds.items() if items]
    if findings:
        raise WeightError(
            f"the weights do not fit the model: {'; '.join(findings)}",
            missing=missing,
            unexpected=unexpected,
            mismatched=mismatched,
        )


def read_parameters(
    tensors: Mapping[str, LazyTensor], target: Callable[[str], mx.Dtype | None]
) -> dict[str, mx.array]:
    """Return the evaluated tensors, floating ones cast to the dtype that `target` returns.

    Tensors are read one after the other, so at most one tensor exists in its stored form
    beside the results.
    """
    arrays: dict[str, mx.array] = {}
    for name, tensor in tensors.items():
        array = tensor.read()
        dtype = target(name)
        if dtype is not None and _is_floating(array.dtype):
            array = array.astype(dtype)
        mx.eval(array)
        arrays[name] = array
    mx.clear_cache()
    return arrays


def assign(
    module: nn.Module, quantised: Mapping[str, nn.Module], arrays: Mapping[str, mx.array]
) -> None:
    """Insert the quantised layers into `module`, then assign the arrays to its parameters."""
    module.update_modules(tree_unflatten(list(quantised.items())))
    module.update(tree_unflatten(list(arrays.items())))
