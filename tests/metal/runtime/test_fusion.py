from __future__ import annotations

from collections.abc import Callable, Iterator

import mlx.core as mx
import pytest

from neve.metal.runtime import device, fusion
from neve.metal.runtime.fusion import fused, fuses

pytestmark = pytest.mark.mlx


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | None], None]]:
    """Return what sets `NEVE_FUSE` as if the process had begun with it."""

    def ask(value: str | None) -> None:
        monkeypatch.delenv("NEVE_FUSE", raising=False)
        if value is not None:
            monkeypatch.setenv("NEVE_FUSE", value)
        fusion._is_asked.cache_clear()

    yield ask
    monkeypatch.undo()
    fusion._is_asked.cache_clear()


@fused
def gated(x: mx.array, gate: mx.array) -> mx.array:
    """Return `x * sigmoid(gate)`."""
    return x * mx.sigmoid(gate)


@pytest.mark.parametrize(("asked", "expected"), [(None, False), ("on", True), ("1", False)])
def test_a_cpu_fuses_on_request_only(
    asked: str | None, expected: bool, ask: Callable[[str | None], None]
) -> None:
    """On a CPU a compiler would be run for it at the first token, so somebody has to ask."""
    ask(asked)

    assert fuses() == (expected or device.is_gpu())


def test_fused_and_plain_are_the_same(
    ask: Callable[[str | None], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Fusing changes the last bits at most, and neither name nor documentation."""
    # where no other process makes the same library at the same time
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("fusion")))
    x, gate = (mx.random.normal((3, 5), key=mx.random.key(i)) for i in range(2))
    ask("off")
    plain = gated(x, gate)
    ask("on")

    assert mx.allclose(gated(x, gate), plain, rtol=1e-6).item()
    assert (gated.__name__, gated.__doc__) == ("gated", "Return `x * sigmoid(gate)`.")
