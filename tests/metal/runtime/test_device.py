from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from neve.metal.runtime import device

pytestmark = pytest.mark.mlx


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "is_gpu", lambda: False)


def meminfo(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    """Let /proc/meminfo hold `text`; None means that there is no such file."""

    def read_text(path: Path, **_: Any) -> str:
        if text is None:
            raise FileNotFoundError(path)
        return text

    monkeypatch.setattr(Path, "read_text", read_text)


def test_the_device_is_mlx_default() -> None:
    """Whether a GPU computes is what MLX says."""
    assert device.is_gpu() == (mx.default_device() == mx.Device(mx.DeviceType.gpu))


@pytest.mark.usefixtures("no_gpu")
def test_on_linux_the_kernel_says_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    """KV-7: sizing reads what could still be had, caches included, not what is unused."""
    meminfo(monkeypatch, "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 4000 kB\n")

    assert device.available_bytes() == 4000 * 1024


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("text", [None, "MemTotal: 9000 kB\n"])
def test_elsewhere_the_physical_memory_stands_in(
    text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KV-7: a system without that figure gives its physical memory."""
    meminfo(monkeypatch, text)
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.get)

    assert device.available_bytes() == 1000 * 4096


@pytest.mark.usefixtures("no_gpu")
def test_a_system_that_says_nothing_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """KV-7: no figure is no bound, not a bound of nothing."""
    meminfo(monkeypatch, None)
    monkeypatch.delattr("os.sysconf")

    assert device.available_bytes() is None


@pytest.mark.parametrize(("info", "expected"), [({"memory_size": 10_000}, 9_000), ({}, None)])
def test_on_a_gpu_active_arrays_are_subtracted(
    info: dict[str, int], expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KV-7: of the device's memory, what MLX holds already is gone."""
    monkeypatch.setattr(device, "is_gpu", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: info)
    monkeypatch.setattr(mx, "get_active_memory", lambda: 1_000)

    assert device.available_bytes() == expected


@pytest.mark.parametrize(
    ("info", "free"),
    [
        ({"memory_size": 1000}, 900),
        ({"total_memory": 1000, "free_memory": 1}, 900),
        ({"device_name": "unknown"}, None),
    ],
)
def test_a_gpus_memory_is_known_on_metal_and_on_cuda(
    monkeypatch: pytest.MonkeyPatch, info: dict[str, Any], free: int | None
) -> None:
    """KV-7: each back end of MLX names its memory differently."""
    monkeypatch.setattr(device, "is_gpu", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: info)
    monkeypatch.setattr(mx, "get_active_memory", lambda: 100)

    assert device.available_bytes() == free
