"""Tests that need a GPU: `make gpu`, or `python -m pytest -m gpu tests/gpu`."""

from __future__ import annotations

import os

# products of float32 are exact to float32 then, also on CUDA: MLX reads it at its first product
os.environ.setdefault("MLX_ENABLE_TF32", "0")

import mlx.core as mx
import pytest

from neve.metal.runtime import launch


@pytest.fixture(autouse=True)
def _gpu() -> None:
    """Skip where MLX has no GPU."""
    if not (mx.metal.is_available() or mx.cuda.is_available()):
        pytest.skip("MLX has no GPU here: neither Metal nor CUDA")
    if launch.backend() is None:
        pytest.skip("kernels are off: NEVE_KERNELS=off, or the CPU is the default device")
