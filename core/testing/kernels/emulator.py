"""Runs kernel bodies on the host: one fiber a thread, three thread orders, with checks.

The back end replaces a GPU in `neve.metal.runtime.launch`. It runs the body with the launch
geometry, template and inputs of the operation's own code.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import mlx.core as mx
import numpy as np

from ...metal.runtime.launch import Kernel, Launch
from .building import KernelError, compiler, library
from .dialect import host_text

__all__ = ("ORDERS", "HostBackend", "KernelError", "compiler")

ORDERS = (0, 1, 2)
"""Thread orders: forwards, backwards, shuffled."""

_MESSAGE_BYTES = 1000


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_int * 3),
        ("threadgroup", ctypes.c_int * 3),
        ("order", ctypes.c_int),
        ("cuda_edges", ctypes.c_int),
        ("seed", ctypes.c_uint64),
    )


@attrs.frozen
class HostBackend:
    """An eager back end for `launch.using`: a launch evaluates its inputs and runs at once.

    Each launch runs in all `orders` on the same inputs. Outputs, and inputs that a body writes,
    have to be equal to the bit.

    Attributes:
        checked: Whether accesses out of bounds, races and divergent barriers are errors.
        orders: Thread orders.
        cuda_edges: Whether whole threadgroups run past the end of the grid, as on CUDA.
        rewrite: Function of a kernel's name and body that returns the body to build.
    """

    checked: bool = True
    orders: Sequence[int] = ORDERS
    cuda_edges: bool = True
    rewrite: Callable[[str, str], str] = lambda _, body: body

    name = "host"
    self_checks = False

    def launch(
        self, kernel: Kernel, inputs: Sequence[mx.array], launch: Launch
    ) -> list[mx.array]:
        """Run a kernel and return its outputs.

        Raises:
            KernelError: The body does not compile, breaks a rule at run time, or its results
                depend on the order of threads.
        """
        plain = [_plain(x) for x in inputs]
        before = [x.copy() for x in plain] if len(self.orders) > 1 else []
        run = _loaded(kernel.name, self._text(kernel, inputs, launch), self.checked)
        results: list[list[np.ndarray]] = []
        for order in self.orders:
            for x, old in zip(plain, before, strict=False):
                if not np.array_equal(x, old):
                    _writable(x)[...] = old
            outputs = [_poisoned(shape, dtype) for shape, dtype in launch.outputs]
            run([*plain, *outputs], launch, order, self.cuda_edges)
            results.append([*outputs, *(x.copy() for x in plain)])
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                if a.tobytes() != b.tobytes():
                    raise KernelError(f"{kernel.name}: the result depends on thread order")
        return [
            mx.array(out).view(dtype).reshape(shape)
            for out, (shape, dtype) in zip(results[0], launch.outputs, strict=False)
        ]

    def _text(self, kernel: Kernel, inputs: Sequence[mx.array], launch: Launch) -> str:
        body = self.rewrite(kernel.name, kernel.body)
        return host_text(
            kernel,
            body,
            [x.dtype for x in inputs],
            [dtype for _, dtype in launch.outputs],
            launch.template,
        )


_BITS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_MLX_BITS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}


def _plain(x: mx.array) -> np.ndarray:
    """Return the bits of an array, without a copy if the array is row-major."""
    bits = mx.contiguous(x).view(_MLX_BITS[x.itemsize])
    mx.eval(bits)
    return np.array(bits, copy=False)


def _writable(x: np.ndarray) -> np.ndarray:
    """Return a writable array over the same memory."""
    memory = (ctypes.c_uint8 * x.nbytes).from_address(x.ctypes.data)
    return np.frombuffer(memoryview(memory), x.dtype).reshape(x.shape)


def _poisoned(shape: tuple[int, ...], dtype: mx.Dtype) -> np.ndarray:
    """Return an output whose bits are all ones, which is NaN in every float dtype."""
    bits = _BITS[dtype.size]
    return np.full(shape, np.iinfo(bits).max, bits)


@functools.cache
def _loaded(name: str, text: str, checked: bool) -> Callable[..., None]:
    """Return a function that runs a kernel, built from its text."""
    entry = ctypes.CDLL(str(library(name, text, checked))).mkx_run
    return functools.partial(_run, entry, name)


def _run(
    entry: Callable[..., int],
    name: str,
    buffers: Sequence[np.ndarray],
    launch: Launch,
    order: int,
    cuda_edges: bool,
) -> None:
    pointers = (ctypes.c_void_p * len(buffers))(*[b.ctypes.data for b in buffers])
    sizes = (ctypes.c_size_t * len(buffers))(*[b.size for b in buffers])
    how = _Launch(
        (ctypes.c_int * 3)(*launch.grid),
        (ctypes.c_int * 3)(*launch.threadgroup),
        order,
        int(cuda_edges),
        1,
    )
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    failed = entry(pointers, sizes, ctypes.byref(how), message, ctypes.c_size_t(_MESSAGE_BYTES))
    if failed:
        raise KernelError(f"{name}: {message.value.decode()}")
