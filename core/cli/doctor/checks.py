"""What `neve doctor` looks at; each check returns findings and raises nothing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import attrs

from ...errors import SettingsError
from ...metal.runtime import blas
from ...settings import resolve
from ..plugins import plugin_rows

_LITTLE_SPACE_BYTES = 5 << 30
GIB = 1 << 30


@attrs.frozen
class Finding:
    """One line of the report.

    Attributes:
        name: What was looked at.
        status: `broken` if something cannot work, `warning` if it works badly.
        detail: What was found.
        advice: What to do about it; None if all is well.
    """

    name: str
    status: Literal["ok", "warning", "broken"]
    detail: str
    advice: str | None = None


def all_findings() -> Iterator[Finding]:
    """Yield every finding, in the order of the report."""
    # first of all: whatever imports MLX before this keeps the slow BLAS
    report = blas.preload()
    yield Finding("neve", "ok", f"{version('neve')} on Python {platform.python_version()}")
    try:
        import_module("mlx.core")
    except ImportError as error:
        advice = "pip install 'neve[cpu]', or 'neve[cuda]' for an NVIDIA card"
        yield Finding(
            "mlx",
            "broken",
            str(error),
            advice if _on_linux() else "pip install --force-reinstall mlx",
        )
    else:
        yield Finding("mlx", "ok", version("mlx"))
        yield _device()
        yield _blas(report)
    yield _environment()
    yield from _plugins()
    yield from _folders()


def _on_linux() -> bool:
    return sys.platform == "linux"


def _device() -> Finding:
    import mlx.core as mx

    from ...metal.runtime import device

    info = mx.device_info()
    kind = "GPU" if device.is_gpu() else f"CPU with {os.cpu_count()} threads"
    name = str(info.get("device_name") or platform.machine())
    available = device.available_bytes()
    memory = "unknown memory" if available is None else f"{available / GIB:.1f} GiB available"
    return Finding("device", "ok", f"{name}, {kind}, {memory}")


def _blas(report: blas.BlasReport) -> Finding:
    from ...metal.runtime import device

    if device.is_gpu():
        return Finding("BLAS", "ok", report.reason)
    detail = f"{report.reason}; {blas.measure_gflops():.0f} GFLOPS measured"
    if report.library is None and _on_linux():
        advice = "pip install 'neve[cpu]', and leave NEVE_BLAS unset; this one is far slower"
        return Finding("BLAS", "warning", detail, advice)
    return Finding("BLAS", "ok", detail)


def _environment() -> Finding:
    """Return whether the variables of neve and of its cache have values that `load` takes."""
    try:
        ignored = resolve().ignored
    except SettingsError as error:
        advice = "correct or unset the variables; docs/settings.md lists their values"
        return Finding("environment", "broken", "; ".join(error.findings), advice)
    if ignored:
        advice = "correct the variables; docs/settings.md lists their values"
        return Finding("environment", "warning", "; ".join(ignored), advice)
    return Finding("environment", "ok", "no variable has an unknown value")


def _plugins() -> Iterator[Finding]:
    rows = plugin_rows()
    if not rows:
        yield Finding(
            "families", "broken", "no family is installed", "pip install neve-qwen3, or another"
        )
    for row in rows:
        if row.fault is None:
            detail = f"{row.distribution} {row.version} for {', '.join(row.model_types)}"
            yield Finding(f"family {row.name}", "ok", detail)
        else:
            advice = "upgrade it together with neve, or uninstall it"
            yield Finding(f"family {row.name}", "broken", row.fault, advice)


def _folders() -> Iterator[Finding]:
    yield _folder("hub cache", _hub_cache, "set HF_HUB_CACHE to a folder with room for models")
    if _on_linux():
        yield _folder("temporary", tempfile.gettempdir, "set TMPDIR to a folder of your own", 0)


def _hub_cache() -> str:
    from huggingface_hub import constants

    return constants.HF_HUB_CACHE


def _folder(
    name: str, find: Callable[[], str], advice: str, enough_bytes: int = _LITTLE_SPACE_BYTES
) -> Finding:
    """Look whether a folder, or the one in which it will be made, can be written to."""
    name = f"{name} folder"
    where = "-"
    try:
        where = find()
        path = Path(where).absolute()
        existing = next(p for p in (path, *path.parents) if p.is_dir())
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        return Finding(name, "broken", f"{where}: {error.strerror}", advice)
    detail = f"{path}, {free / GIB:.0f} GiB free"
    if free < enough_bytes:
        return Finding(name, "warning", detail, f"free some space, or {advice}")
    return Finding(name, "ok", detail)
