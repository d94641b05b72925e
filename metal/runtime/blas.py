"""A fast BLAS in front of the slow one that MLX brings to Linux CPUs.

MLX's Linux wheel binds `cblas_sgemm` to a bundled reference BLAS, on one core thirty times
slower than OpenBLAS. The dynamic linker resolves a name to the library that was loaded first
with *global* symbols. So an OpenBLAS that is loaded before `mlx.core` wins; a later one changes
nothing.

Nothing here raises, and no library is required. The report names the library in use, or the
reasons why none is. `NEVE_BLAS=off` keeps MLX's own BLAS; `NEVE_BLAS=/path/to/libopenblas.so`
selects a library.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import re
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs

from .elf_alias import expose

_VARIABLE = "NEVE_BLAS"
_SYSTEM_LIBRARIES = ("libopenblasp.so.0", "libopenblas.so.0")  # Fedora's threaded one; Debian's
_FUNCTIONS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm", "cblas_zgemm")
_MEASURING_S = 0.25
_HOW_TO_GET_ONE = "install the package scipy-openblas32, which is part of neve[cpu]"


@attrs.frozen
class BlasReport:
    """The library that multiplies MLX's matrices on the CPU, and the reason for the choice.

    Attributes:
        library: Library in front of MLX's own BLAS; None if there is none.
        source: Origin of the library: `NEVE_BLAS`, `system` or `wheel`.
        reason: One sentence about the choice, also where MLX keeps its own BLAS.
        config: Build configuration that the library reports; None if it reports none.
    """

    reason: str
    library: str | None = None
    source: str | None = None
    config: str | None = None


class _UnusableLibraryError(Exception):
    """A library that loads but would compute wrong results or crash."""


@cache
def preload() -> BlasReport:
    """Load an optimised BLAS before MLX does, once per process.

    The call has an effect only before the first import of `mlx.core`, on Linux, without a GPU
    back end. Later calls return the report of the first call.
    """
    obstacle = _reason_to_stay_out()
    if obstacle:
        return BlasReport(reason=obstacle)
    findings: list[str] = []
    for source, library in _candidates():
        try:
            config = _put_in_front(library, trusted=source == _VARIABLE)
        except (OSError, _UnusableLibraryError) as error:
            findings.append(str(error))
        else:
            reason = f"a BLAS stands in front of MLX's own, from: {source}"
            return BlasReport(reason=reason, library=library, source=source, config=config)
    hint = () if os.environ.get(_VARIABLE) else (_HOW_TO_GET_ONE,)
    return BlasReport(reason="; ".join((*findings, *hint)))


def measure_gflops(size: int = 512) -> float:
    """Measure MLX's float32 matrix product on the CPU, in 10^9 operations a second.

    The measurement multiplies by a transposed weight, like a linear layer, for a quarter of a
    second.
    """
    import mlx.core as mx

    x, weight = (mx.random.normal((size, size), stream=mx.cpu) for _ in range(2))

    def multiply() -> None:
        mx.eval(mx.matmul(x, weight.T, stream=mx.cpu))

    multiply()  # the first product starts threads
    start, num_products = time.perf_counter(), 0
    while (elapsed_s := time.perf_counter() - start) < _MEASURING_S:
        multiply()
        num_products += 1
    return 2e-9 * size**3 * num_products / elapsed_s


def _reason_to_stay_out() -> str | None:
    if sys.platform != "linux":
        return "only MLX's Linux wheels bring a slow BLAS"
    if os.environ.get(_VARIABLE) == "off":
        return f"{_VARIABLE}=off"
    if "mlx.core" in sys.modules:
        return "mlx.core was imported before neve loaded a BLAS, and has bound its own"
    back_end = _gpu_back_end()
    return f"{back_end} is installed and computes on the GPU" if back_end else None


def _gpu_back_end() -> str | None:
    """Return the installed distribution of MLX's GPU back end, None without one.

    MLX's metadata lists all back ends, so that a new one needs no change here.
    """
    try:
        requirements = importlib.metadata.requires("mlx") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    names = {name for line in requirements for name in re.findall(r"^mlx-cuda[\w-]*", line)}
    return next((name for name in sorted(names) if _is_installed(name)), None)


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _candidates() -> Iterator[tuple[str, str]]:
    """Yield (source, library), best first; `NEVE_BLAS` excludes all others."""
    named = os.environ.get(_VARIABLE)
    if named:
        yield _VARIABLE, named
        return
    for name in _SYSTEM_LIBRARIES:
        yield "system", name
    spec = importlib.util.find_spec("scipy_openblas32")
    if spec and spec.origin:
        yield "wheel", str(Path(spec.origin).with_name("lib") / "libscipy_openblas.so")


def _put_in_front(name: str, *, trusted: bool) -> str | None:
    """Make MLX find the matrix products of a library; return the config of the library."""
    library = ctypes.CDLL(name)  # local symbols until the check has passed
    prefix = _prefix(name, library)
    config = _config(library, prefix)
    _check(name, config or "", trusted=trusted)
    if prefix:
        expose({function: _address(library, prefix + function) for function in _FUNCTIONS})
    else:
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    return config


def _prefix(name: str, library: ctypes.CDLL) -> str:
    """Return the prefix of the function names of a library."""
    for prefix in ("", "scipy_"):
        if all(hasattr(library, prefix + function) for function in _FUNCTIONS):
            return prefix
    raise _UnusableLibraryError(f"{name}: does not define {', '.join(_FUNCTIONS)}")


def _config(library: ctypes.CDLL, prefix: str) -> str | None:
    symbol = f"{prefix}openblas_get_config"
    if not hasattr(library, symbol):
        return None
    ask = library[symbol]
    ask.restype = ctypes.c_char_p
    return ask().decode(errors="replace").strip()


def _check(name: str, config: str, *, trusted: bool) -> None:
    """Refuse a library that would compute wrong results or crash on this processor.

    A library for one processor ends the process with SIGILL on another. A library that
    `NEVE_BLAS` names is trusted to fit this processor.
    """
    words = config.split()
    if "USE64BITINT" in words:
        raise _UnusableLibraryError(f"{name}: takes 64-bit integers, MLX passes 32-bit ones")
    if words and "DYNAMIC_ARCH" not in words and not trusted:
        hint = f"{_VARIABLE}={name} uses it all the same"
        raise _UnusableLibraryError(f"{name}: built for one processor ({config}); {hint}")


def _address(library: ctypes.CDLL, symbol: str) -> int:
    address = ctypes.cast(library[symbol], ctypes.c_void_p).value
    assert address is not None, symbol
    return address
