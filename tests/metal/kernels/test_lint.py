"""The dialect of kernel bodies, as far as their text tells."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources

import pytest

from neve.metal.runtime.launch import Kernel
from neve.testing.kernels import recording
from neve.testing.kernels.lint import faults

pytestmark = pytest.mark.mlx

SOURCES = resources.files("neve.metal").joinpath("src").iterdir()
BODIES = sorted(path.name[:-6] for path in SOURCES if path.name.endswith(".metal"))
EMPTY = Kernel("empty", ("x", "lengths"), ("out",))


@functools.cache
def launched() -> Mapping[str, Kernel]:
    """Return all kernels that a registered operation launches, by name."""
    probes = (p for operation in recording.operations().values() for p in operation.probes())
    calls = (call for probe in probes for call in recording.launches(probe))
    return {call.kernel.name: call.kernel for call in calls}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_probed(name: str):
    """PK-1: no kernel escapes: each file is launched by what an operation has registered."""
    assert name in launched(), f"dispatch.register a check that launches {name}"


@pytest.mark.parametrize("name", BODIES)
def test_a_body_keeps_to_the_dialect(name: str):
    """What Apple's compiler alone would refuse is not written."""
    kernel = launched().get(name, Kernel(name, (), ()))

    assert faults(kernel, kernel.body) == []


@pytest.mark.parametrize(
    "line",
    [
        "double d = 1;",
        "std::min(1, 2);",
        "auto f = [&](int i) { out[i] = 1; };",
        "auto f = [] { };",
        "static int calls = 0;",
        "if constexpr (N > 1) { }",
        "struct Pair { int a; };",
        "const device T* p = x;",
        "float* p = acc;",
        "float& first = acc[0];",
        "auto p = reinterpret_cast<const device uint4*>(x);",
        "goto end;",
        "const int t = threadIdx.x;",
        "#define TWICE(x) (2 * (x))",
        "return 1;",
        "threadgroup float tile[4][4];",
        "if (N > 1) {\n  threadgroup float tile[4];\n}",
        "threadgroup float a[4], b[4];",
        "auto p = (threadgroup float*)tile;",
        "int grid_size = 1;  // a parameter on Metal",
        "// the grid_origin is not used",
        "uint thread_index_in_simdgroup = 3;",
        "uint my_thread_position_in_grid;",
        "int max_shape = 1;",
        "const int n = block_lengths_shape;",
    ],
)
def test_what_is_not_the_dialect_is_found(line: str):
    """Each of these compiles somewhere, and is refused or means something else on a Mac."""
    assert faults(EMPTY, line)


@pytest.mark.parametrize(
    "line",
    [
        "// double, std::vector, static: words of a comment",
        "threadgroup float tile[32 * N];",
        "threadgroup_barrier(mem_flags::mem_threadgroup);",
        "auto row = x + long(t) * width;",
        "const float y = float(x[0]) * 2.0f;",
        "const uint lane = thread_index_in_simdgroup;",
        "if (thread_index_in_simdgroup == 0) { return; }",
        "#pragma unroll",
        "acc[i] = weights[i] * (x[i] + 1.0f);",
        "const int n = T(1) * int(2) * total;",
    ],
)
def test_what_is_the_dialect_passes(line: str):
    """The rules leave alone what bodies are made of."""
    assert faults(EMPTY, line) == []


def test_a_fault_is_reported_where_it_stands():
    """The sentence names the file and the line, comments before it notwithstanding."""
    found = faults(EMPTY, "// one\n/* two\n three */\nint a;\ndouble d;\n")

    assert found == ["empty.metal:5: Metal has no double ('double')"]
