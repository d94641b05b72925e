"""Which launches an operation makes, without running any."""

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
    """A launch, and of its inputs what the generated text depends on."""

    kernel: Kernel
    inputs: tuple[Argument, ...]
    launch: Launch

    def __str__(self) -> str:
        inputs = ", ".join(f"{name}{shape}" for name, (shape, _) in self._named())
        return f"{self.kernel.name}<{dict(self.launch.template)}>({inputs})"

    def _named(self) -> list[tuple[str, Argument]]:
        return list(zip(self.kernel.inputs, self.inputs, strict=True))

    def resized(self) -> list[Recorded]:
        """Return this launch, and as a batch of one and a large one would make it.

        MLX declares inputs of fewer than 8 elements differently, so these are other texts.
        What has a row for each row of an output, and tables and lists of int32, grow with a
        batch; everything else is geometry. The grid stays: no text depends on it.
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
    """A back end for `launch.using` that writes launches down and returns zeros."""

    name = "recording"
    self_checks = False

    def __init__(self) -> None:
        self.launches: list[Recorded] = []

    def launch(
        self, kernel: Kernel, inputs: Sequence[mx.array], launch: Launch
    ) -> list[mx.array]:
        """Write a launch down, once."""
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
    """Return the launches that a probe makes; its comparisons are left out."""
    recording = RecordingBackend()
    with launch.using(recording), mock.patch.object(dispatch, "compare"):
        probe()
    return recording.launches
