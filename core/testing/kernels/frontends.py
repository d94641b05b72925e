"""Compilers for generated kernels on any Linux: clang for Metal texts, NVRTC for CUDA texts.

Only Apple's compiler reads the Metal shading language. clang's "C++ for OpenCL" is the nearest
language: the compiler and the model of address spaces are the same.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import attrs

from ...metal.runtime.launch import Template
from .building import KernelError, cache_folder, headers
from .dialect import METAL_TYPES, constants

_EXTENSIONS = (
    "-__opencl_c_generic_address_space",
    "-__opencl_c_fp64",
    "-cl_khr_fp64",
    "-__opencl_c_program_scope_global_variables",
    "-__opencl_c_pipes",
    "-__opencl_c_device_enqueue",
    "-__opencl_c_read_write_images",
    "+cl_khr_fp16",
)
"""Extensions of OpenCL: features that Metal lacks are off."""
_CLANG = (
    *("-x", "clcpp", "-cl-std=CLC++2021", "-target", "amdgcn-amd-amdhsa", "-nogpulib"),
    *("-cl-no-stdinc", "-fsyntax-only", "-Wall", "-Werror"),
    *("-Wno-unused-variable", "-Wno-unused-local-typedef", "-Wno-unknown-attributes"),
    *("-Wno-unknown-pragmas", "-Wno-pass-failed"),
    "-Xclang",
    f"-cl-ext={','.join(_EXTENSIONS)}",
)
_ARCHITECTURE = "sm_90"


def clang() -> str | None:
    """Return the clang that parses Metal texts, None if the system has none.

    Older versions do not do: clang 16 lacks some casts to bfloat16.
    """
    return next(filter(None, map(shutil.which, ("clang-19", "clang-20", "clang-21"))), None)


def parse_metal(text: str, template: Template) -> None:
    """Parse the text of a Metal kernel, with the types and constants of its template.

    Raises:
        KernelError: The text is invalid, or there is no clang.
    """
    command = clang()
    if command is None:
        raise KernelError("no clang-19 on this system: Metal texts cannot be parsed")
    done = subprocess.run(  # noqa: S603  a compiler and text of our own
        [command, *_CLANG, f"-I{headers()}", "-"],
        input=_as_opencl(text, template),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise KernelError(f"clang rejects the Metal text:\n{done.stderr}")


def _as_opencl(text: str, template: Template) -> str:
    """Replace the template of a kernel by declarations: OpenCL has no kernel templates."""
    text = re.sub(r"\ntemplate \[\[host_name.*", "", text, flags=re.DOTALL)
    text = re.sub(r"(?:template <[^>]*>\n)?\[\[kernel\]\] void", "kernel void", text)
    body = text.index(") {\n", text.index("kernel void")) + len(") {\n")
    return (
        f'#include "msl_shim.h"\n{text[:body]}'
        + constants(template, METAL_TYPES)
        + f'#line 1 "body.metal"\n{text[body:]}'
    )


@attrs.frozen
class Nvrtc:
    """NVIDIA's compiler from its wheels."""

    library: ctypes.CDLL
    include: Path

    def ptx(self, text: str) -> str:
        """Return the PTX of a CUDA text, from a cache if it was compiled before.

        Raises:
            KernelError: It does not compile.
        """
        key = hashlib.sha256("\0".join((text, *self._options())).encode()).hexdigest()[:24]
        cached = cache_folder() / f"{key}.ptx"
        if not cached.exists():
            written = cached.with_suffix(f".{os.getpid()}")
            written.write_text(self._compiled(text))
            written.replace(cached)
        return cached.read_text()

    def _options(self) -> list[str]:
        folders = (headers(), self.include, self.include / "cccl")
        return [
            f"--gpu-architecture={_ARCHITECTURE}",
            "--std=c++17",
            "--device-as-default-execution-space",
            *(f"--include-path={folder}" for folder in folders),
        ]

    def _compiled(self, text: str) -> str:
        program = ctypes.c_void_p()
        self.library.nvrtcCreateProgram(
            ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None
        )
        options = [option.encode() for option in self._options()]
        failed = self.library.nvrtcCompileProgram(
            program, len(options), (ctypes.c_char_p * len(options))(*options)
        )
        result = self._read(program, "ProgramLog" if failed else "PTX")
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        if failed:
            raise KernelError(f"NVRTC rejects the CUDA text:\n{result}")
        return result

    def _read(self, program: ctypes.c_void_p, what: str) -> str:
        size = ctypes.c_size_t()
        self.library[f"nvrtcGet{what}Size"](program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self.library[f"nvrtcGet{what}"](program, text)
        return text.value.decode()


@functools.cache
def nvrtc() -> Nvrtc | None:
    """Return NVIDIA's compiler, None if its wheels are not installed."""
    packages = importlib.util.find_spec("nvidia")
    folders = packages.submodule_search_locations if packages else None
    for root in (Path(folder, "cu13") for folder in folders or ()):
        libraries = sorted(root.glob("lib/libnvrtc.so.*"))
        if libraries and (root / "include/cuda_bf16.h").exists():
            # the library loads its built-ins by name from a path that lacks them
            for built_ins in root.glob("lib/libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(built_ins))
            return Nvrtc(ctypes.CDLL(str(libraries[0])), root / "include")
    return None
