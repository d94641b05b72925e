"""Records the launches of an operation without running them."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import TypeAlias
from unittest import mock

import attrs
import mlx.core as mx

from ... import metal
from ...metal.runtime import dispatch, launch
from ...metal.runtime.dispatch import Operation, Probe
from ...metal.runtime.launch import Kernel, Launch

Argument: TypeAlias = tuple[tuple[int, ...], mx.Dtype]
"""Shape and dtype of an input."""


@attrs.frozen
class Recorded:
    """A launch with shapes and dtypes of its inputs, on which the generated text depends."""

    kernel: Kernel
    inputs: tuple[Argument, ...]
    launch: Launch

    def __str__(self) -> str:
        inputs = ", ".join(f"{name}{shape}" for name, (shape, _) in self._named())
        return f"{self.kernel.name}<{dict(self.launch.template)}>({inputs})"

    def _named(self) -> list[tuple[str, Argument]]:
        return list(zip(self.kernel.inputs, self.inputs, strict=True))

    def resized(self) -> list[Recorded]:
        """Return this launch, the same launch for a batch of one, and for a large batch.

        The texts differ, because MLX declares inputs of fewer than 8 elements in another
        address space. Inputs with as many rows as an output grow with the batch, and so do
        tables and lists of int32; other inputs are geometry. The grid stays: no text depends on
        it.
        """
        rows = {shape[0] for shape, dtype in self.launch.outputs if dtype != mx.int32}
        per_row = [
            shape[0] in rows or (dtype == mx.int32 and len(shape) <= 2)
            for shape, dtype in self.inputs
        ]
        return [self, self._with_rows(per_row, 1), self._with_rows(per_row, 64)]

    def _with_rows(self, per_row: Sequence[bool], rows: int) -> Recorded:
        inputs = (
            ((rows, *shape[1:]) if grows else shape, dtype)
            for (shape, dtype), grows in zip(self.inputs, per_row, strict=True)
        )
        return attrs.evolve(self, inputs=tuple(inputs))


class RecordingBackend:
    """A back end for `launch.using` that records launches and returns zeros."""

    name = "recording"
    self_checks = False

    def __init__(self) -> None:
        self.launches: list[Recorded] = []

    def launch(
        self, kernel: Kernel, inputs: Sequence[mx.array], launch: Launch
    ) -> list[mx.array]:
        """Record a launch, once."""
        found = Recorded(kernel, tuple((x.shape, x.dtype) for x in inputs), launch)
        if found not in self.launches:
            self.launches.append(found)
        return [mx.zeros(shape, dtype) for shape, dtype in launch.outputs]


@functools.cache
def operations() -> Mapping[str, Operation]:
    """Return every operation of `neve.metal` that has kernels, by name."""
    for module in pkgutil.walk_packages(metal.__path__, f"{metal.__name__}."):
        importlib.import_module(module.name)
    return dispatch.registered()


def launches(probe: Probe) -> list[Recorded]:
    """Return the launches of a probe; its comparisons do not run."""
    recording = RecordingBackend()
    with launch.using(recording), mock.patch.object(dispatch, "compare"):
        probe()
    return recording.launches
