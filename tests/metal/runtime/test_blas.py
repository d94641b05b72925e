"""Each test runs a fresh process: what stands in front of MLX is decided once per process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any, Protocol

import pytest

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(sys.platform != "linux", reason="MLX's BLAS is slow on Linux only"),
]

PRETEND = """
import ctypes, os
from pathlib import Path
from neve.metal.runtime import elf_alias

get_config = ctypes.CFUNCTYPE(ctypes.c_char_p)(lambda: os.environ["PRETENDED_CONFIG"].encode())
names = ["openblas_get_config", *(f"cblas_{kind}gemm" for kind in "sdcz")]
address = ctypes.cast(get_config, ctypes.c_void_p).value
header = Path("/proc/self/exe").read_bytes()[:64]
image = elf_alias.build_image(dict.fromkeys(names, address), header)
for name in ("libopenblasp.so.0", "libopenblas.so.0"):
    Path(os.environ["LD_LIBRARY_PATH"], name).write_bytes(image)
"""
"""Source that puts an OpenBLAS of any configuration where the system would have it."""


class Run(Protocol):
    """Runs source in a new interpreter and returns its variable `answer`."""

    def __call__(self, source: str, **environment: str) -> Any: ...


class Report(Protocol):
    """Returns what `preload` reports in a new interpreter, after some preparation."""

    def __call__(self, before: str = "", **environment: str) -> dict[str, Any]: ...


@pytest.fixture
def run() -> Run:
    def run(source: str, **environment: str) -> Any:
        source = f"{dedent(source)}\nimport json\nprint(json.dumps(answer))"
        inherited = {name: value for name, value in os.environ.items() if name != "NEVE_BLAS"}
        process = subprocess.run(
            [sys.executable, "-c", source],
            env=inherited | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout)

    return run


@pytest.fixture
def report(run: Run) -> Report:
    source = """
import attrs
from neve.metal.runtime import blas
answer = attrs.asdict(blas.preload())
"""

    def report(before: str = "", **environment: str) -> dict[str, Any]:
        return run(before + source, **environment)

    return report


def test_the_wheel_multiplies_for_mlx(run: Run):
    """The `cblas_sgemm` that MLX will bind lies in OpenBLAS, and the product is right."""
    pytest.importorskip("scipy_openblas32")
    answer = run("""
        import ctypes
        from pathlib import Path
        from neve.metal.runtime import blas
        report = blas.preload()
        import mlx.core as mx
        import numpy as np

        address = ctypes.cast(ctypes.CDLL(None).cblas_sgemm, ctypes.c_void_p).value
        for line in Path("/proc/self/maps").read_text().splitlines():
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            if start <= address < end:
                owner = line.split()[-1]
        a, b = mx.random.normal((2, 96, 96))
        close = np.allclose(np.array(a @ b), np.array(a) @ np.array(b), atol=1e-4)
        answer = [report.source, report.library, report.config, owner, bool(close)]
    """)
    source, library, config, owner, close = answer

    assert close
    assert source in {"system", "wheel"}
    assert "DYNAMIC_ARCH" in config
    assert owner == library or source == "system"


def test_mlx_calls_what_was_put_in_front(run: Run):
    """A global `cblas_sgemm` from before the import is what MLX's matmul calls."""
    num_calls = run("""
        import ctypes
        from neve.metal.runtime import elf_alias

        calls = []
        spy = ctypes.CFUNCTYPE(None)(lambda: calls.append(1))
        elf_alias.expose({"cblas_sgemm": ctypes.cast(spy, ctypes.c_void_p).value})
        import mlx.core as mx
        mx.eval(mx.matmul(mx.ones((8, 8)), mx.ones((8, 8)), stream=mx.cpu))
        answer = len(calls)
    """)

    assert num_calls == 1


def test_off_leaves_mlx_alone(report: Report):
    """`NEVE_BLAS=off` loads nothing."""
    answer = report(NEVE_BLAS="off")

    assert answer == {
        "library": None,
        "source": None,
        "config": None,
        "reason": "NEVE_BLAS=off",
    }


def test_a_named_library_is_the_only_candidate(report: Report, tmp_path: Path):
    """A path that cannot be loaded is reported; nothing else is tried in its place."""
    path = str(tmp_path / "libnowhere.so")
    answer = report(NEVE_BLAS=path)

    assert answer["library"] is None
    assert answer["reason"].startswith(path)
    assert "install" not in answer["reason"]


def test_a_library_that_is_no_blas_is_refused(report: Report):
    """A named library must have the matrix products."""
    answer = report(NEVE_BLAS="libm.so.6")

    assert answer["library"] is None
    assert "libm.so.6: does not define cblas_sgemm" in answer["reason"]


def test_too_late_is_said(report: Report):
    """After `mlx.core` a library would change nothing, so none is loaded."""
    answer = report(before="import mlx.core")

    assert answer["library"] is None
    assert "mlx.core was imported before" in answer["reason"]


def test_other_systems_are_left_alone(report: Report):
    """On macOS MLX uses Accelerate."""
    answer = report(before="import sys; sys.platform = 'darwin'")

    assert answer["library"] is None
    assert "Linux" in answer["reason"]


def test_a_gpu_back_end_needs_no_blas(report: Report, tmp_path: Path):
    """With MLX's CUDA distribution installed nothing is loaded."""
    metadata = tmp_path / "mlx_cuda_13-0.32.4.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: mlx-cuda-13\nVersion: 0.32.4\n")
    answer = report(PYTHONPATH=str(tmp_path))

    assert answer["library"] is None
    assert answer["reason"].startswith("mlx-cuda-13 is installed")


def test_a_library_for_another_processor_is_refused(report: Report, tmp_path: Path):
    """A system OpenBLAS without DYNAMIC_ARCH could die with SIGILL; another one is named."""
    answer = report(
        before=PRETEND + "\nimport sys; sys.modules['scipy_openblas32'] = None",
        LD_LIBRARY_PATH=str(tmp_path),
        PRETENDED_CONFIG="OpenBLAS 0.3.21 SKYLAKEX",
    )

    assert answer["library"] is None
    assert "libopenblas.so.0: built for one processor" in answer["reason"]
    assert answer["reason"].endswith(
        "install the package scipy-openblas32, which is part of neve[cpu]"
    )


def test_a_named_library_for_one_processor_is_trusted(report: Report, tmp_path: Path):
    """Who names such a library in `NEVE_BLAS` has built it for this machine."""
    answer = report(
        before=PRETEND,
        LD_LIBRARY_PATH=str(tmp_path),
        NEVE_BLAS=str(tmp_path / "libopenblas.so.0"),
        PRETENDED_CONFIG="OpenBLAS 0.3.21 SKYLAKEX",
    )

    assert answer["library"] == str(tmp_path / "libopenblas.so.0")
    assert answer["source"] == "NEVE_BLAS"
    assert answer["config"] == "OpenBLAS 0.3.21 SKYLAKEX"


def test_wide_integers_are_refused(report: Report, tmp_path: Path):
    """MLX passes 32-bit sizes: a 64-bit OpenBLAS would compute nonsense."""
    answer = report(
        before=PRETEND,
        LD_LIBRARY_PATH=str(tmp_path),
        NEVE_BLAS="libopenblas.so.0",
        PRETENDED_CONFIG="OpenBLAS 0.3.21 USE64BITINT DYNAMIC_ARCH",
    )

    assert answer["library"] is None
    assert "64-bit integers" in answer["reason"]


def test_later_calls_return_the_first_report(run: Run):
    """The report stays true after MLX is imported, for whoever asks later."""
    same = run("""
        from neve.metal.runtime import blas
        first = blas.preload()
        import mlx.core
        answer = blas.preload() is first
    """)

    assert same


def test_the_speed_can_be_asked(run: Run):
    """The doctor gets a figure."""
    gflops = run("from neve.metal.runtime import blas\nanswer = blas.measure_gflops(64)")

    assert gflops > 0
