"""Every kernel on the GPU, against its reference."""

from __future__ import annotations

import random

import mlx.core as mx
import pytest

from neve.metal.runtime import dispatch, launch
from neve.metal.runtime.dispatch import Probe
from neve.testing.kernels import recording

pytestmark = pytest.mark.gpu

PROBES = [
    probe for operation in recording.operations().values() for probe in operation.probes()
]
NUM_DRAWS = 3


def test_arrays_are_the_gpus():
    """The smallest thing that has to work: a sum, computed where kernels run."""
    assert mx.default_device().type == mx.DeviceType.gpu
    assert mx.arange(1000).sum().item() == 499500


@pytest.mark.parametrize("probe", PROBES, ids=str)
def test_kernels_equal_their_references(probe: Probe):
    """PK-1: a kernel compiles here, and equals its reference for inputs drawn anew."""
    for seed in (1, *(random.randrange(2**31) for _ in range(NUM_DRAWS))):
        try:
            probe(seed=seed)
        except Exception as error:
            error.add_note(f"with the inputs of seed {seed}")
            raise


@pytest.mark.parametrize("operation", recording.operations().values(), ids=lambda o: o.name)
def test_the_self_check_passes(operation: dispatch.Operation):
    """PK-1: the first use of an operation finds its kernel right, so that it is used."""
    backend = launch.backend()
    assert backend is not None
    for probe in operation.probes():
        name = f"test_{operation.name}"

        assert dispatch.takes_kernel(name, (probe.dtype, *probe.variant), probe)
    assert f"test_{operation.name}:{backend.name}" in dispatch.counts()
