"""Builds kernel bodies for the host, each once; a folder keeps the libraries."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

_FLAGS = ("-std=c++17", "-fPIC", "-Wall", "-Wno-unknown-pragmas", "-Wno-unused-variable")
_KERNEL = (
    *_FLAGS,
    "-shared",
    "-Werror=uninitialized",
    "-Werror=maybe-uninitialized",
    "-Werror=array-bounds",
)
_CHECKED = ("-O1", "-g1", "-DMKX_CHECKED", "-ftrivial-auto-var-init=pattern")
_FAST = ("-O2", "-march=native", "-Wno-maybe-uninitialized", "-Wno-error=maybe-uninitialized")


class KernelError(RuntimeError):
    """A body does not compile, or breaks a rule for kernels."""


def compiler() -> str | None:
    """Return the path of the C++ compiler, None if the system has none."""
    return shutil.which("g++")


@functools.cache
def cache_folder() -> Path:
    """Return the folder of compiled kernels: `NEVE_KERNEL_CACHE`, or a temporary folder."""
    base = os.environ.get("NEVE_KERNEL_CACHE") or Path(tempfile.gettempdir(), "neve-kernels")
    folder = Path(base)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.cache
def headers() -> Path:
    """Return the folder of the headers for host builds."""
    return Path(str(resources.files(__name__.rpartition(".")[0]).joinpath("include")))


def library(name: str, text: str, checked: bool) -> Path:
    """Return the shared library of a kernel, built from its text at the first call.

    Raises:
        KernelError: The text does not compile, or there is no compiler.
    """
    flags = (*_KERNEL, *(_CHECKED if checked else _FAST))
    header = headers().joinpath("mkx_host.h").read_text()
    return _built(f"{name}.so", text, header, (*flags, str(_runtime())))


@functools.cache
def _runtime() -> Path:
    header = headers().joinpath("mkx_host.h").read_text()
    text = headers().joinpath("mkx_runtime.cpp").read_text()
    return _built("mkx_runtime.o", text, header, (*_FLAGS, "-O2", "-c"))


def _built(name: str, text: str, header: str, flags: Sequence[str]) -> Path:
    """Return the file compiled from a text, from the cache if it has one.

    Args:
        name: Name of the file, to which a hash of the other arguments is added.
        text: C++ source.
        header: Text of the header that the source includes.
        flags: Flags of the compiler.
    """
    cxx = compiler()
    if cxx is None:
        raise KernelError("no g++ on this system: kernels cannot run on the host")
    key = hashlib.sha256("\0".join((text, header, *flags)).encode()).hexdigest()[:24]
    stem, _, suffix = name.rpartition(".")
    target = cache_folder() / f"{stem}_{key}.{suffix}"
    if not target.exists():
        # other processes may build the same library: each process writes its own files
        source = target.with_suffix(f".{os.getpid()}.cpp")
        written = source.with_suffix(".tmp")
        source.write_text(text)
        command = [cxx, f"-I{headers()}", str(source), *flags, "-o", str(written)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        source.unlink()
        if done.returncode:
            raise KernelError(f"{stem} does not compile:\n{done.stderr}")
        written.replace(target)
    return target
