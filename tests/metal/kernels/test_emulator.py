"""The host's back end: it runs kernels as a GPU may, and sees what a GPU would not say."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import pytest

from neve.metal.runtime.launch import Kernel, Launch
from neve.testing.kernels import building
from neve.testing.kernels.emulator import ORDERS, HostBackend, KernelError, compiler

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(compiler() is None, reason="no g++ here to build kernels with"),
]

# a name of a file; every test puts its own body in
KERNEL = Kernel("gated_activation", ("x",), ("out",))
HEADER = "  const int i = int(thread_position_in_grid.x);\n"


def run(
    body: str,
    x: mx.array | None = None,
    *,
    grid: int = 64,
    threadgroup: int = 64,
    template: Mapping[str, mx.Dtype] | None = None,
    dtype: mx.Dtype = mx.float32,
    checked: bool = True,
) -> mx.array:
    host = HostBackend(checked=checked, rewrite=lambda _, text: HEADER + body)
    x = mx.arange(64, dtype=mx.float32) if x is None else x
    launch = Launch(template or {}, (grid, 1, 1), (threadgroup, 1, 1), [((64,), dtype)])
    return host.launch(KERNEL, [x], launch)[0]


@pytest.mark.parametrize("checked", [True, False])
def test_simdgroups_and_threadgroups_meet(checked: bool):
    """Sums of lanes, shuffles and what other threads put into threadgroup memory are right."""
    got = run(
        """
  threadgroup float sums[2];
  const float sum = simd_sum(x[i]);
  const float right = simd_shuffle_down(x[i], 1);
  const float twin = simd_shuffle_xor(x[i], 16);
  if (thread_index_in_simdgroup == 0) { sums[simdgroup_index_in_threadgroup] = sum; }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = sums[0] + 2 * sums[1] + right + twin + simd_max(x[i]) - simd_min(x[i]);""",
        checked=checked,
    )
    rows = mx.arange(64).reshape(2, 32)
    right = mx.concatenate([rows[:, 1:], rows[:, -1:]], axis=1)
    twin = mx.concatenate([rows[:, 16:], rows[:, :16]], axis=1)
    want = rows[0].sum() + 2 * rows[1].sum() + right + twin + 31

    assert mx.array_equal(got, want.reshape(-1).astype(mx.float32))


@pytest.mark.parametrize("checked", [True, False])
def test_lanes_ask_each_other(checked: bool):
    """Any lane's truth is all lanes'; a group of lanes takes from one of its own."""
    got = run(
        """
  const float any = simd_any(i == 40) ? 100.0f : 0.0f;
  out[i] = any + mkx_shuffle<8>(x[i], int(thread_index_in_simdgroup), 3);""",
        checked=checked,
    )
    from_group = mx.arange(64) // 8 * 8 + 3

    assert got.tolist() == (from_group + mx.where(mx.arange(64) >= 32, 100, 0)).tolist()


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_what_is_fetched_is_what_is_loaded(dtype: mx.Dtype):
    """Elements that were brought as words are the same numbers."""
    x = mx.random.normal((64,), key=mx.random.key(1)).astype(dtype)
    body = """
  uint words[8];
  float r[8];
  mkx_fetch<8>(x + i / 8 * 8, words);
  mkx_unpack<8, T>(words, r);
  out[i] = T(r[i % 8]);"""

    assert mx.array_equal(run(body, x, template={"T": dtype}, dtype=dtype), x)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_stores_round_as_mlx_does(dtype: mx.Dtype):
    """A float is rounded once, to the nearest, ties to even; infinities and NaN stay."""
    values = [0.1, -3.14159, 65519.0, 1e-7, 1.00390625, 1.01171875, float("inf"), float("nan")]
    x = mx.array(values * 8, mx.float32)
    got = run("  out[i] = T(x[i] * 1.0f);", x, template={"T": dtype}, dtype=dtype)

    assert mx.array_equal(got, x.astype(dtype), equal_nan=True)


def test_what_is_not_written_is_nan():
    """A kernel that forgets a part of its output leaves NaN there, not zeros."""
    got = run("  if (i % 2 == 0) { out[i] = x[i]; }")

    assert mx.array_equal(mx.isnan(got), mx.arange(64) % 2 == 1)


def test_an_input_may_be_written_through():
    """What a body writes through mkx_mutable is in the array that was handed in."""
    x = mx.zeros((64,))
    run("  auto y = mkx_mutable(x);\n  y[i] = float(i);\n  out[i] = 0.0f;", x)

    assert mx.array_equal(x, mx.arange(64, dtype=mx.float32))


def test_threads_past_the_grid_run_as_on_cuda():
    """CUDA launches whole threadgroups, so that a body has to look where it is."""
    body = "  if (i < 40) { out[i] = x[i]; }\n  else { out[63] = 1.0f; }"

    assert run(body, grid=40, threadgroup=32)[63].item() == 1


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("  out[i] = x[i + 1];", r"buffer x\[64\] out of bounds \(size 64\)"),
        ("  out[i - 1] = x[i];", r"buffer out\[-1\] out of bounds"),
        ("  float r[4];\n  mkx_load<4>(x + i / 2, r);\n  out[i] = r[0];", "not aligned to 4"),
        ("  uint w[4];\n  mkx_fetch<4>(x + i / 2, w);\n  out[i] = w[0];", "not aligned to 4"),
        (
            "  threadgroup float a[63];\n  a[i] = 1.0f;\n  out[i] = 0.0f;",
            r"threadgroup a\[63\] out of bounds",
        ),
        (
            "  threadgroup float a[64];\n  a[i] = x[i];\n  out[i] = a[63 - i];",
            "race on threadgroup a.*no barrier between",
        ),
        ("  threadgroup float a[8193];\n  a[i] = 1.0f;\n  out[i] = a[i];", "above 32 KiB"),
        (
            "  if (i < 16) { threadgroup_barrier(mem_flags::mem_none); }\n  out[i] = 0.0f;",
            "divergent.*thread 0: at threadgroup_barrier.*line 2; thread 16: finished",
        ),
        (
            "  if (i > 3) { return; }\n  out[i] = simd_sum(x[i]);",
            "divergent.*at simd_sum line 3",
        ),
        ("  out[0] = float(i);", "depends on thread order"),
        ("  out[i] = y;", "does not compile"),
        ("  float r;\n  out[i] = r;", "does not compile"),
        ("  out[i] = max(i, 1u);", "does not compile"),
    ],
)
def test_what_no_kernel_may_do_is_an_error(body: str, says: str):
    """PK-1: bounds, races, divergence, 32 KiB and the order of threads are watched."""
    with pytest.raises(KernelError, match=f"(?s){says}"):
        run(body)


def test_a_simdgroup_barrier_orders_its_own_lanes_only():
    """Threads of one simdgroup may exchange data after simdgroup_barrier, others may not."""
    body = """
  threadgroup float a[64];
  a[i] = x[i];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = a[{}];"""

    assert run(body.format("i ^ 1")).tolist() == [i ^ 1 for i in range(64)]
    with pytest.raises(KernelError, match="race on threadgroup a"):
        run(body.format("63 - i"))


def test_a_float_does_not_become_bfloat_by_itself():
    """Metal wants T(x) on a store, so the host does too."""
    with pytest.raises(KernelError, match="does not compile"):
        run("  out[i] = x[i] * 2.0f;", dtype=mx.bfloat16)


def test_every_order_sees_the_inputs_as_they_were():
    """A body that adds to its input in place has added once, not once an order."""
    x = mx.zeros((64,))
    run("  auto y = mkx_mutable(x);\n  y[i] = x[i] + 1.0f;\n  out[i] = 0.0f;", x)

    assert len(ORDERS) == 3
    assert mx.array_equal(x, mx.ones((64,)))


def test_a_view_is_read_as_what_it_shows():
    """Inputs reach a body row-major, as MLX hands them to a GPU."""
    x = mx.arange(64, dtype=mx.float32).reshape(8, 8).T

    assert mx.array_equal(run("  out[i] = x[i];", x), x.reshape(-1))


def test_what_was_built_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two bodies of one text are one library, and a changed one is another."""
    monkeypatch.setattr(building, "cache_folder", lambda: tmp_path)
    text = 'extern "C" int answer() { return 42; }\n'
    first = building.library("answer", text, checked=True)
    before = first.stat().st_mtime_ns

    assert building.library("answer", text, checked=True).stat().st_mtime_ns == before
    assert building.library("answer", text + "// changed", checked=True) != first


def test_the_portable_switch_of_stacks_runs(tmp_path: Path):
    """Processors without a switch of their own use that of the C library."""
    main = tmp_path / "main.cpp"
    main.write_text(
        """
#include <stdio.h>
#include "mkx_host.h"
int main() {
  float sums[64];
  char error[200] = "";
  const mkx::Launch how = {{64, 1, 1}, {64, 1, 1}, 2, 0, 1};
  const int failed = mkx::launch(how, [&](const mkx::Ids& id) {
    sums[id.tpig.x] = metal::simd_sum(1.0f);
    metal::threadgroup_barrier(metal::mem_flags::mem_none);
  }, error, sizeof error);
  printf("%d %s %g", failed, error, sums[0] + sums[63]);
}
"""
    )
    program = tmp_path / "main"
    runtime = building.headers() / "mkx_runtime.cpp"
    flags = ["-std=c++17", "-DMKX_UCONTEXT", f"-I{building.headers()}"]
    cxx = compiler() or ""
    subprocess.run([cxx, *flags, str(main), str(runtime), "-o", str(program)], check=True)
    said = subprocess.run([program], capture_output=True, text=True, check=True, env=os.environ)

    assert said.stdout == "0  64"
