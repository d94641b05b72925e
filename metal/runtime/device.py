"""The device that MLX computes on."""

from __future__ import annotations

import os
from pathlib import Path

import mlx.core as mx

_TOTAL_MEMORY = ("memory_size", "total_memory")
"""Keys of MLX's device info with the bytes of a GPU's memory: of Metal, and of CUDA."""


def is_gpu() -> bool:
    """Whether the default device is a GPU."""
    return mx.default_device().type == mx.DeviceType.gpu


def _linux_available_bytes() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def available_bytes() -> int | None:
    """Return the bytes that are free for arrays, None if the system does not report them."""
    if is_gpu():
        info = mx.device_info()
        total = next((info[key] for key in _TOTAL_MEMORY if key in info), None)
        return int(total) - mx.get_active_memory() if total is not None else None
    available = _linux_available_bytes()
    if available is None and hasattr(os, "sysconf"):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return available
