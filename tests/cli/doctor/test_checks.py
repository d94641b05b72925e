"""What the doctor looks at."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from neve.cli.doctor import checks
from neve.cli.doctor.checks import Finding, all_findings
from neve.cli.plugins import PluginRow
from neve.metal.runtime.blas import BlasReport

pytestmark = pytest.mark.mlx


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(checks.blas, "measure_gflops", lambda: 123.4)


def find(name) -> Finding:
    return next(finding for finding in all_findings() if finding.name == name)


def test_this_installation_is_sound():
    """UX-2: where the tests run, everything is in place."""
    findings = {finding.name: finding for finding in all_findings()}

    assert not [f for f in findings.values() if f.status == "broken"]
    assert {"neve", "mlx", "device", "BLAS", "family qwen3", "hub cache folder"} <= set(
        findings
    )
    assert findings["BLAS"].detail.endswith("123 GFLOPS measured")


def test_every_problem_has_advice(monkeypatch, tmp_path):
    """UX-2: whatever is not ok comes with what to do."""
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(checks, "import_module", failing_import)
    monkeypatch.setattr(checks, "plugin_rows", lambda: [PluginRow("x", fault="y")])
    monkeypatch.setattr(checks, "_hub_cache", lambda: str(file / "hub"))
    findings = list(all_findings())

    assert {f.name for f in findings if f.status == "broken"} >= {"mlx", "family x"}
    assert all((f.status == "ok") == (f.advice is None) for f in findings)


def failing_import(name):
    raise ImportError("libmlx.so: cannot open shared object file")


def test_mlx_without_a_back_end(monkeypatch):
    """UX-2: the doctor survives an MLX that cannot be imported."""
    monkeypatch.setattr(checks, "import_module", failing_import)
    mlx = find("mlx")

    assert (mlx.status, "libmlx.so" in mlx.detail) == ("broken", True)


def test_slow_blas_is_a_warning(monkeypatch):
    """UX-2: a BLAS that is merely slow works, and is said to be slow."""
    monkeypatch.setattr(checks, "_on_linux", lambda: True)
    monkeypatch.setattr(checks.blas, "preload", lambda: BlasReport(reason="NEVE_BLAS=off"))

    assert (find("BLAS").status, "neve[cpu]" in str(find("BLAS").advice)) == ("warning", True)


def test_no_family(monkeypatch):
    """UX-2: without a family no model can be loaded."""
    monkeypatch.setattr(checks, "plugin_rows", list)

    assert find("families").status == "broken"


def test_folder_that_is_still_to_be_made(monkeypatch, tmp_path):
    """UX-2: a cache folder that does not exist is judged by the one it will be made in."""
    monkeypatch.setattr(checks, "_hub_cache", lambda: str(tmp_path / "a" / "b"))

    assert find("hub cache folder").status == "ok"
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written(monkeypatch, tmp_path):
    """UX-2: a folder that refuses files is broken, and the system's reason is shown."""

    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checks, "_hub_cache", lambda: str(tmp_path))
    monkeypatch.setattr(checks.tempfile, "TemporaryFile", refuse)
    finding = find("hub cache folder")

    assert (finding.status, finding.detail) == ("broken", f"{tmp_path}: Permission denied")
    assert "HF_HUB_CACHE" in str(finding.advice)


def test_full_disk_is_a_warning(monkeypatch, tmp_path):
    """UX-2: little space for models is worth a word."""
    monkeypatch.setattr(checks, "_hub_cache", lambda: str(tmp_path))
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))

    assert find("hub cache folder").status == "warning"
    assert find("temporary folder").status == "ok"


def test_an_unknown_value_of_a_variable_is_reported(monkeypatch):
    """UX-2: the report names the variable and its values before a model is loaded."""
    assert find("environment").status == "ok"

    monkeypatch.setenv("NEVE_KERNELS", "no")
    broken = find("environment")
    assert (broken.status, broken.detail) == (
        "broken",
        "NEVE_KERNELS: must be on or off, got 'no'",
    )
    assert broken.advice is not None


def test_an_unreadable_variable_is_a_warning(monkeypatch):
    """UX-2: `load` ignores the variable, so the report names it."""
    monkeypatch.setenv("MLX_SCHED_MAX_NUM_SEQS", "many")
    warning = find("environment")

    assert (warning.status, "MLX_SCHED_MAX_NUM_SEQS='many'" in warning.detail) == (
        "warning",
        True,
    )
