"""Gated norms, against their formulas in float64."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from neve.layers.gated_norm import GatedGroupNorm, GatedRMSNorm
from neve.metal.elementwise import gated_norm, norms

pytestmark = pytest.mark.mlx


@pytest.fixture(autouse=True, params=[False, True], ids=["by-mlx", "by-operations"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute norms of few elements by MLX's own, or as where operations are fused on a CPU."""
    if request.param:
        for module in (norms, gated_norm):
            monkeypatch.setattr(module, "is_few", lambda x: x.size <= norms.FEW_ELEMENTS)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def group_norm(dims: int, num_groups: int) -> GatedGroupNorm:
    norm = GatedGroupNorm(dims, num_groups, eps=1e-3)
    norm.weight = mx.random.normal((dims,), key=mx.random.key(0))
    return norm


@pytest.mark.parametrize("num_tokens", [5, 300])
@pytest.mark.parametrize("start", [0, 7])
def test_a_norm_comes_before_its_gate(num_tokens: int, start: int) -> None:
    """FA-2: `x / rms(x) * weight * silu(gate)`, few tokens or many, gates in wider rows."""
    norm, rng = GatedRMSNorm(16, eps=1e-3), np.random.default_rng(0)
    norm.weight = mx.random.normal((16,), key=mx.random.key(0))
    x, rows = rng.normal(size=(num_tokens, 3, 16)), rng.normal(size=(num_tokens, 60))
    out = norm(mx.array(x, mx.float32), mx.array(rows, mx.float32), start=start)

    y = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-3) * np.array(norm.weight)
    gate = rows[:, start : start + 48].reshape(x.shape)
    np.testing.assert_allclose(out, (y * silu(gate)).reshape(num_tokens, 48), atol=1e-5)


def test_few_and_many_tokens_give_the_same_bits() -> None:
    """TG-3: a token does not depend on how many there are."""
    norm = GatedRMSNorm(64, eps=1e-6)
    norm.set_dtype(mx.bfloat16)
    x, rows = mx.random.normal((200, 2, 64)), mx.random.normal((200, 128))

    many = norm(x.astype(mx.bfloat16), rows.astype(mx.bfloat16))
    few = norm(x[:3].astype(mx.bfloat16), rows[:3].astype(mx.bfloat16))
    assert mx.array_equal(many[:3], few)


@pytest.mark.parametrize("num_groups", [1, 2, 8])
def test_a_gate_comes_before_the_norm_of_its_group(num_groups: int) -> None:
    """FA-7: `y / rms(y) * weight` with `y = x * silu(gate)`, group by group."""
    norm = group_norm(16, num_groups)
    x, gate = np.random.default_rng(0).normal(size=(2, 5, 16))
    out = norm(mx.array(x, mx.float32), mx.array(gate, mx.float32))

    y = (x * silu(gate)).reshape(5, num_groups, -1)
    y = y / np.sqrt((y**2).mean(axis=-1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(out, y.reshape(5, 16) * np.array(norm.weight), atol=1e-5)


def test_a_group_norm_answers_in_the_dtype_of_its_gate() -> None:
    """FA-7: float32 inside widens no residual stream, and rounds once."""
    norm, x = group_norm(16, 2), mx.random.normal((5, 16))
    gate = mx.random.normal((5, 16)).astype(mx.bfloat16)
    norm.set_dtype(mx.bfloat16)
    out = norm(x, gate)
    norm.set_dtype(mx.float32)

    assert out.dtype == mx.bfloat16
    exact = norm(x, gate.astype(mx.float32)).astype(mx.bfloat16)
    assert mx.array_equal(out, exact)
