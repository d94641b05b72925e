"""The dialect of kernel bodies: its names and types, and their translation for the host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import mlx.core as mx

from ...metal.runtime.launch import Kernel, Template

ATTRIBUTES: Mapping[str, tuple[str, str]] = {
    "simdgroup_index_in_threadgroup": ("uint", "mkx_lin / 32"),
    "simdgroups_per_threadgroup": (
        "uint",
        "(id.tptgsz.x * id.tptgsz.y * id.tptgsz.z + 31) / 32",
    ),
    "thread_index_in_simdgroup": ("uint", "mkx_lin % 32"),
    "thread_index_in_threadgroup": ("uint", "mkx_lin"),
    "thread_position_in_grid": ("uint3", "id.tpig"),
    "thread_position_in_threadgroup": ("uint3", "id.tptg"),
    "threadgroup_position_in_grid": ("uint3", "id.tgpig"),
    "threadgroups_per_grid": ("uint3", "id.tgpg"),
    "threads_per_simdgroup": ("uint", "32"),
    "threads_per_threadgroup": ("uint3", "id.tptgsz"),
}
"""Metal's names for the position of a thread -> type, and expression of the host's runner."""

THREADGROUP_ARRAY = re.compile(
    r"^(\s*)threadgroup\s+([\w:]+)\s+(\w+)\s*\[([^\]]+)\]\s*;", re.MULTILINE
)

METAL_TYPES: Mapping[mx.Dtype, str] = {
    mx.float32: "float",
    mx.float16: "float16_t",
    mx.bfloat16: "bfloat16_t",
    mx.int32: "int32_t",
    mx.uint32: "uint32_t",
    mx.int64: "int64_t",
    mx.uint8: "uint8_t",
}

CUDA_TYPES: Mapping[mx.Dtype, str] = {
    **METAL_TYPES,
    mx.float16: "__half",
    mx.bfloat16: "__nv_bfloat16",
}


def constants(template: Template, types: Mapping[mx.Dtype, str]) -> str:
    """Return the entries of a template as C++ declarations."""
    lines: list[str] = []
    for name, value in template.items():
        if isinstance(value, mx.Dtype):
            lines.append(f"using {name} = {types[value]};\n")
        elif isinstance(value, bool):
            lines.append(f"constexpr bool {name} = {str(value).lower()};\n")
        else:
            lines.append(f"constexpr int {name} = {value};\n")
    return "".join(lines)


def host_text(
    kernel: Kernel,
    body: str,
    inputs: Sequence[mx.Dtype],
    outputs: Sequence[mx.Dtype],
    template: Template,
) -> str:
    """Return a C++ file that runs a body, with the entry point `mkx_run`."""
    arguments = [
        *((n, "const " + METAL_TYPES[t]) for n, t in zip(kernel.inputs, inputs, strict=True)),
        *((n, METAL_TYPES[t]) for n, t in zip(kernel.outputs, outputs, strict=True)),
    ]
    buffers = "".join(
        f'  const auto {name} = mkx::wrap<{kind}>(bufs[{i}], sizes[{i}], "{name}");\n'
        for i, (name, kind) in enumerate(arguments)
    )
    attributes = "".join(
        f"    const {kind} {name} = {value}; (void){name};\n"
        for name, (kind, value) in ATTRIBUTES.items()
        if name in body
    )
    return (
        '#include "mkx_host.h"\n'
        + constants(template, METAL_TYPES)
        + 'extern "C" int mkx_run(void** bufs, const size_t* sizes, const mkx::Launch* how,\n'
        + "    char* error, size_t error_size) {\n"
        + buffers
        + "  return mkx::launch(*how, [&](const mkx::Ids& id) {\n"
        + "    const uint mkx_lin = id.tptg.x + id.tptgsz.x * (id.tptg.y + id.tptgsz.y"
        + " * id.tptg.z); (void)mkx_lin;\n"
        + attributes
        + f'#line 1 "{kernel.name}.metal"\n'
        + THREADGROUP_ARRAY.sub(r"\1MKX_TG(\2, \3, \4);", body)
        + "\n  }, error, error_size);\n}\n"
    )
