"""What MLX hands to the compilers of GPUs, checked without a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable

import mlx.core as mx
import pytest

from neve.metal.runtime.dispatch import Operation, Probe
from neve.metal.runtime.launch import Kernel, Launch
from neve.testing.kernels import frontends, recording, texts
from neve.testing.kernels.emulator import KernelError
from neve.testing.kernels.recording import Recorded

pytestmark = pytest.mark.mlx

OPERATIONS = recording.operations()
PROBES = [probe for operation in OPERATIONS.values() for probe in operation.probes()]
needs_clang = pytest.mark.skipif(frontends.clang() is None, reason="no clang-19 here")
needs_nvrtc = pytest.mark.skipif(frontends.nvrtc() is None, reason="no wheels of NVRTC here")


def launched(probes: Iterable[Probe]) -> list[Recorded]:
    """Return the launches of probes, in batches of one and large ones as well."""
    made = (call for probe in probes for call in recording.launches(probe))
    return [resized for call in made for resized in call.resized()]


@pytest.mark.parametrize("probe", PROBES, ids=str)
def test_the_text_for_metal_is_known(probe: Probe):
    """What is parsed here is what MLX generates: parameters, address spaces and template."""
    for call in launched([probe]):
        mlx, name = texts.mlx_metal_text(call)

        assert mlx.strip() == texts.metal_text(call, name).strip()


@needs_clang
@pytest.mark.parametrize("probe", PROBES, ids=str)
def test_the_text_for_metal_parses(probe: Probe):
    """PK-1: a body is valid with Metal's address spaces, in batches of one and large ones."""
    parsed = {texts.metal_text(call, "kernel"): call for call in launched([probe])}
    for text, call in parsed.items():
        frontends.parse_metal(text, call.launch.template)


@needs_nvrtc
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda o: o.name)
def test_the_text_for_cuda_compiles(operation: Operation):
    """PK-1: NVIDIA's compiler makes PTX of a body in every dtype and variant."""
    probes = operation.probes()
    calls = [call for probe in probes for call in recording.launches(probe)]
    distinct = list({texts.cuda_function(call, ""): call for call in calls}.values())
    nvrtc = frontends.nvrtc()
    assert nvrtc is not None
    ptx = nvrtc.ptx(texts.cuda_text(distinct))

    assert len(re.findall(r"\.entry", ptx)) == len(distinct)


COPY = Recorded(
    Kernel("gated_activation", ("x", "ip"), ("out",)),
    (((64,), mx.float16), ((2,), mx.int32)),
    Launch({"T": mx.float16}, (32, 1, 1), (32, 1, 1), [((64,), mx.float16)]),
)
"""A launch whose body is put in by the tests below."""


def text_of(body: str) -> str:
    return texts.metal_text(COPY, "copy").replace(COPY.kernel.body, body)


@needs_clang
@pytest.mark.parametrize(
    ("fault", "body"),
    [
        ("writes to an input", "  x[0] = T(1);"),
        ("a pointer without an address space", "  const half* p = x; out[0] = p[0];"),
        ("a load through device of a small input", "  float r[2]; mkx_load<2>(ip, r);"),
        ("a threadgroup array in a scope", "  { threadgroup float a[4]; a[0] = 1; }"),
        (
            "threadgroup memory as device's",
            "  threadgroup T a[4]; float r[4]; mkx_load<4>(a, r);",
        ),
        ("a double", "  double d = 1.0; out[0] = T(d);"),
        ("ambiguous types", "  out[0] = T(max(ip[0], 1u));"),
        ("an unknown function", "  out[0] = T(metal::erf(float(x[0])));"),
        ("an undeclared name", "  out[0] = y;"),
    ],
)
def test_what_metal_refuses_does_not_parse(fault: str, body: str):
    """The substitute for Apple's compiler sees what that would refuse."""
    with pytest.raises(KernelError, match="error:"):
        frontends.parse_metal(text_of(body), COPY.launch.template)


@needs_clang
def test_what_metal_takes_parses():
    """Loads and stores of words, threadgroup memory and a write through an input are valid."""
    body = """
  threadgroup float shared[8];
  float r[8];
  mkx_load<8>(x + 8, r);
  shared[0] = simd_sum(r[0]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  auto y = mkx_mutable(x);
  mkx_store<8>(y, r);
  mkx_store<1>(out, r);
  out[1] = T(shared[0]) + T(ip[1]);"""
    frontends.parse_metal(text_of(body), COPY.launch.template)


@needs_nvrtc
def test_what_cuda_refuses_does_not_compile():
    """A name that CUDA's header does not spell is found."""
    nvrtc = frontends.nvrtc()
    assert nvrtc is not None
    text = texts.cuda_text([COPY]).replace(COPY.kernel.body, "  out[0] = T(simd_prefix(1));")

    with pytest.raises(KernelError, match="simd_prefix"):
        nvrtc.ptx(text)
