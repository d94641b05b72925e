from __future__ import annotations

import mlx.core as mx
import pytest

from neve.metal import device
from neve.metal.fusion import fused, fuses

pytestmark = pytest.mark.mlx


@fused
def gated(x: mx.array, gate: mx.array) -> mx.array:
    """Return `x * sigmoid(gate)`."""
    return x * mx.sigmoid(gate)


@pytest.mark.parametrize(("asked", "expected"), [(None, False), ("on", True), ("1", False)])
def test_a_cpu_fuses_on_request_only(
    asked: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU a compiler would be run for it at the first token, so somebody has to ask."""
    monkeypatch.delenv("NEVE_FUSE", raising=False)
    if asked is not None:
        monkeypatch.setenv("NEVE_FUSE", asked)

    assert fuses() == (expected or device.is_gpu())


def test_fused_and_plain_are_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Fusing changes the last bits at most, and neither name nor documentation."""
    # where no other process makes the same library at the same time
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("fusion")))
    x, gate = (mx.random.normal((3, 5), key=mx.random.key(i)) for i in range(2))
    monkeypatch.setenv("NEVE_FUSE", "off")
    plain = gated(x, gate)
    monkeypatch.setenv("NEVE_FUSE", "on")

    assert mx.allclose(gated(x, gate), plain, rtol=1e-6).item()
    assert (gated.__name__, gated.__doc__) == ("gated", "Return `x * sigmoid(gate)`.")
