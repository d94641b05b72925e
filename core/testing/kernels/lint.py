"""Lint of kernel bodies, for mistakes that else only Apple's compiler or MLX on a Mac finds."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence

from ...metal.runtime.launch import Kernel
from .dialect import ATTRIBUTES, THREADGROUP_ARRAY

FOREIGN_ATTRIBUTES = (
    "dispatch_quadgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "grid_origin",
    "grid_size",
    "quadgroup_index_in_threadgroup",
    "quadgroups_per_threadgroup",
    "thread_execution_width",
    "thread_index_in_quadgroup",
    "threads_per_grid",
)
"""Metal's names that MLX turns into parameters, without a counterpart on CUDA."""

_TYPES = r"(?:auto|bool|char|float|half|int|long|short|T|uchar|uint|ulong|ushort|\w+_t)"

_RULES: Sequence[tuple[str, str]] = (
    (r"\bdouble\b", "Metal has no double"),
    (r"\bstd::|\bNULL\b|\bprintf\b|\bnew\b|\bdelete\b", "Metal has no standard library"),
    (r"\bgoto\b|\btry\b|\bcatch\b|\bthrow\b", "Metal has no goto and no exceptions"),
    (r"\bstatic\b|\bthread_local\b|\bvolatile\b", "storage classes differ between compilers"),
    (r"\bif\s+constexpr\b", "`if constexpr` is C++17, Metal's language is C++14"),
    (r"\[[=&\w\s,]*\]\s*(?:\([^)]*\)[^;{]*)?\{", "a lambda"),
    (
        r"\b(?:struct|class|union|template|namespace|operator)\b",
        "a definition",
    ),
    (r"\b(?:device|constant|thread)\b", "an address space: pointers are made by `auto`"),
    (r"\breinterpret_cast\b|\bconst_cast\b", "a cast of pointers: use mkx_load or mkx_mutable"),
    (rf"\b(?!auto\b){_TYPES}\s*(?:const\s*)?[*&]\s*\w+", "a pointer or reference: use `auto`"),
    (r"\bthreadIdx\b|\bblockIdx\b|\bblockDim\b|\b__\w+", "CUDA's or a compiler's own name"),
    (r"^\s*#\s*(?!pragma\s+unroll\b)\w+", "a directive other than `#pragma unroll`"),
    (r"\breturn\s+[^;\s]", "a kernel returns nothing"),
)


def faults(kernel: Kernel, body: str) -> list[str]:
    """Return a sentence for each construct of a body that the dialect lacks."""
    code = _without_comments(body)
    found = [
        (body.count("\n", 0, match.start()) + 1, f"{sentence} ({match[0].strip()!r})")
        for pattern, sentence in _RULES
        for match in re.finditer(pattern, code, re.MULTILINE)
    ]
    found += _threadgroup_arrays(code)
    found += _attributes(body, code)
    found += _hidden_arguments(kernel, body)
    return [f"{kernel.name}.metal:{line}: {sentence}" for line, sentence in sorted(found)]


def _without_comments(body: str) -> str:
    """Return the body with blanks in place of comments, so that positions stay."""
    return re.sub(
        r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), body, flags=re.S
    )


def _threadgroup_arrays(code: str) -> Generator[tuple[int, str]]:
    depth = 0
    for number, line in enumerate(code.split("\n"), 1):
        if re.search(r"\bthreadgroup\b", line):
            if not THREADGROUP_ARRAY.match(line):
                yield number, "threadgroup memory other than one 1-D array on a line"
            elif depth:
                yield number, "a threadgroup array that is not at the body's top level"
        depth += line.count("{") - line.count("}")


def _attributes(body: str, code: str) -> Generator[tuple[int, str]]:
    # MLX searches the names as substrings, in comments as well
    for name in FOREIGN_ATTRIBUTES:
        for match in re.finditer(name, body):
            yield _line(body, match), f"{name} becomes a parameter on Metal, and CUDA has none"
    for name in ATTRIBUTES:
        for match in re.finditer(rf"(\w*){name}(\w*)(\s*=(?!=))?", code):
            if match[1] or match[2] or match[3]:
                yield _line(body, match), f"{match[0]} clashes with the attribute {name}"


def _hidden_arguments(kernel: Kernel, body: str) -> Generator[tuple[int, str]]:
    for name in kernel.inputs:
        for match in re.finditer(rf"\w*{name}_(?:shape|strides|ndim)\w*", body):
            yield _line(body, match), f"{match[0]} makes MLX add an argument for {name}"


def _line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1
