"""The texts that MLX passes to Apple's compiler and to NVRTC, generated without a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import mlx.core as mx

from ...metal.runtime.launch import MlxBackend, Template, source_text
from .dialect import ATTRIBUTES, CUDA_TYPES, METAL_TYPES, constants
from .recording import Recorded

_CONSTANT_BELOW = 8
"""Inputs of fewer elements are in Metal's constant address space."""


def metal_text(call: Recorded, name: str) -> str:
    """Return the text of `mx.fast.metal_kernel` for a launch, without MLX's own utilities."""
    template = call.launch.template
    values = [_metal_value(value) for value in template.values()]
    function = f"custom_kernel_{name}"
    if template:
        function += "__" + "_".join(values)
    for shape, dtype in call.inputs:
        function += f"_{METAL_TYPES[dtype]}" + ("c" if _is_constant(shape) else "")
    for _, dtype in call.launch.outputs:
        function += f"_{METAL_TYPES[dtype]}"
    text = source_text("mkx_metal.h") + _metal_template(template)
    text += f"[[kernel]] void {function}(\n" + ",\n".join(_metal_parameters(call)) + ") {\n"
    text += call.kernel.body + "\n}\n"
    if template:
        instance = f"{function}<{', '.join(values)}>"
        text += f'\ntemplate [[host_name("{function}")]] [[kernel]] '
        text += f"decltype({instance}) {instance};\n"
    return text


def _is_constant(shape: tuple[int, ...]) -> bool:
    return math.prod(shape) < _CONSTANT_BELOW


def _metal_value(value: mx.Dtype | int | bool) -> str:
    return METAL_TYPES[value] if isinstance(value, mx.Dtype) else str(int(value))


def _metal_template(template: Template) -> str:
    def kind(value: mx.Dtype | int | bool) -> str:
        if isinstance(value, mx.Dtype):
            return "typename"
        return "bool" if isinstance(value, bool) else "int"

    parameters = ", ".join(f"{kind(value)} {name}" for name, value in template.items())
    return f"template <{parameters}>\n" if template else ""


def _metal_parameters(call: Recorded) -> list[str]:
    buffers = [
        f"const {'constant' if _is_constant(shape) else 'device'} {METAL_TYPES[dtype]}* {name}"
        for name, (shape, dtype) in zip(call.kernel.inputs, call.inputs, strict=True)
    ]
    buffers += [
        f"device {METAL_TYPES[dtype]}* {name}"
        for name, (_, dtype) in zip(call.kernel.outputs, call.launch.outputs, strict=True)
    ]
    attributes = [
        f"  {kind} {name} [[{name}]]"
        for name, (kind, _) in ATTRIBUTES.items()
        if name in call.kernel.body
    ]
    return [f"  {buffer} [[buffer({i})]]" for i, buffer in enumerate(buffers)] + attributes


def mlx_metal_text(call: Recorded) -> tuple[str, str]:
    """Return the text that MLX generates for a launch, and the name of the kernel in the text.

    MLX generates Metal kernels on any system if the graph is exported, not evaluated.
    """
    backend = MlxBackend("metal", _verbose_metal_kernel, "mkx_metal.h")

    def graph(*inputs: mx.array) -> list[mx.array]:
        return backend.launch(call.kernel, inputs, call.launch)

    inputs = [mx.zeros(shape, dtype) for shape, dtype in call.inputs]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as printed:
        with _standard_output_into(printed):
            mx.export_function(str(Path(folder, "graph")), graph, *inputs)
        printed.seek(0)
        said = printed.read().decode()
    found = re.search(r"Generated source code for `(\w+)`:\n```\n(.*)\n```", said, re.DOTALL)
    if found is None:
        raise RuntimeError(f"MLX printed no text for {call}: {said!r}")
    return found[2], found[1]


def _verbose_metal_kernel(**how: Any) -> Callable[..., Any]:
    kernel: Any = mx.fast.metal_kernel(**how)
    return functools.partial(kernel, verbose=True)


@contextlib.contextmanager
def _standard_output_into(file: BinaryIO) -> Generator[None]:
    """Redirect the standard output of C++ code."""
    sys.stdout.flush()
    before = os.dup(1)
    os.dup2(file.fileno(), 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(before, 1)
        os.close(before)


def cuda_text(calls: Sequence[Recorded]) -> str:
    """Return the texts of `mx.fast.cuda_kernel` for launches, in one file.

    MLX generates a file for each launch; all files begin alike.
    """
    names = [f"{call.kernel.name}_{i}" for i, call in enumerate(calls)]
    return (
        '#include "mlx/backend/cuda/device/utils.cuh"\n'
        "#include <cooperative_groups.h>\n"
        + source_text("mkx_cuda.h")
        + "namespace mlx::core::cu {\nnamespace cg = cooperative_groups;\n"
        + "".join(map(cuda_function, calls, names))
        + "}\n"
    )


def cuda_function(call: Recorded, name: str) -> str:
    """Return the entry point of a launch: its parameters, template and body."""
    buffers = [
        f"    const {CUDA_TYPES[dtype]}* {name}"
        for name, (_, dtype) in zip(call.kernel.inputs, call.inputs, strict=True)
    ]
    buffers += [
        f"    {CUDA_TYPES[dtype]}* {name}"
        for name, (_, dtype) in zip(call.kernel.outputs, call.launch.outputs, strict=True)
    ]
    return (
        f"__global__ void custom_kernel_{name}(\n"
        + ",\n".join(buffers)
        + ") {\n"
        + constants(call.launch.template, CUDA_TYPES)
        + f'#line 1 "{call.kernel.name}.metal"\n'
        + call.kernel.body
        + "\n}\n"
    )
