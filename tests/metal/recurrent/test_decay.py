from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from neve.metal.recurrent.decay import decay_between

pytestmark = pytest.mark.mlx


@pytest.mark.parametrize("size", [1, 3, 64])
def test_decay_between(size: int) -> None:
    """FA-7: products of the decays after one token up to another, ones above the diagonal."""
    g = np.random.default_rng(size).random((2, size, 1)).astype(np.float32)
    g[:, ::5] = 0.0
    products = np.array(decay_between(mx.array(g)))

    for t in range(size):
        for i in range(size):
            expected = g[:, i + 1 : t + 1, 0].astype(np.float64).prod(axis=1)
            np.testing.assert_allclose(products[:, t, i], expected, rtol=1e-5, atol=1e-37)
