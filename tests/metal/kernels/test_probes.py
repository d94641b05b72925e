"""Kernels on the host: right, and known to be checked by what would notice if they were not."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import attrs
import mlx.core as mx
import pytest

from neve.metal.runtime import launch
from neve.metal.runtime.dispatch import KernelMismatchError, Probe
from neve.metal.runtime.launch import Kernel, Launch
from neve.testing.kernels import recording
from neve.testing.kernels.emulator import HostBackend, KernelError, compiler
from neve.testing.kernels.recording import Recorded, RecordingBackend

from .mutants import MUTANTS, Mutant

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(compiler() is None, reason="no g++ here to build kernels with"),
]

PROBES = [
    probe for operation in recording.operations().values() for probe in operation.probes()
]
SEEDED = [(kernel, mutant) for kernel, mutants in MUTANTS.items() for mutant in mutants]


class WatchedHost(RecordingBackend):
    """The host's back end, that writes down what it runs."""

    def launch(
        self, kernel: Kernel, inputs: Sequence[mx.array], launch: Launch
    ) -> list[mx.array]:
        super().launch(kernel, inputs, launch)
        return HostBackend().launch(kernel, inputs, launch)


@pytest.mark.parametrize("probe", PROBES, ids=str)
def test_kernels_equal_their_references(probe: Probe):
    """PK-1: a kernel's numbers are its reference's, in any order of threads, within bounds."""
    host = WatchedHost()
    with launch.using(host):
        probe()

    assert unordered(host.launches) == unordered(recording.launches(probe))


def unordered(launches: Sequence[Recorded]) -> set[str]:
    return set(map(str, launches))


def test_every_kernel_has_seeded_bugs():
    """A kernel whose tests notice nothing is as good as untested."""
    kernels = {call.kernel.name for probe in PROBES for call in recording.launches(probe)}

    assert set(MUTANTS) == kernels


@pytest.mark.parametrize(
    ("kernel", "mutant"), SEEDED, ids=[f"{kernel}-{mutant}" for kernel, mutant in SEEDED]
)
def test_a_seeded_bug_is_noticed(kernel: str, mutant: Mutant):
    """PK-1: the probes of a kernel do not pass with a bug in it."""
    probes = (probe for probe in probes_of(kernel) if mutant.seen_by in str(probe))

    assert any(fails(probe, kernel, mutant) for probe in probes)


def probes_of(kernel: str) -> Generator[Probe]:
    """Yield the probes that launch a kernel, those of bfloat16 first: they see the most."""
    for probe in sorted(PROBES, key=lambda probe: probe.dtype != mx.bfloat16):
        if any(call.kernel.name == kernel for call in recording.launches(probe)):
            yield probe


def fails(probe: Probe, kernel: str, mutant: Mutant) -> bool:
    def seed(name: str, body: str) -> str:
        if name != kernel:
            return body
        assert mutant.old in body, f"{mutant.old!r} stands in {kernel}.metal no more"
        return body.replace(mutant.old, mutant.new, 1)

    with launch.using(attrs.evolve(HostBackend(), rewrite=seed)):
        try:
            probe()
        except (KernelError, KernelMismatchError):
            return True
    return False
