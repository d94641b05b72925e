"""What the doctor says about a checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from neve.cli.doctor.checkpoint_checks import checkpoint_findings

pytestmark = pytest.mark.mlx

CHECKPOINTS = Path(__file__).parents[3] / "checkpoints"


def details(name):
    return {f.name: f.detail for f in checkpoint_findings(str(CHECKPOINTS / name))}


@pytest.fixture(autouse=True)
def _unasked(monkeypatch):
    for variable in ("MLX_PERSIST_PAGED_CACHE", "MLX_BLOCK_PAGED_CACHE"):
        monkeypatch.delenv(variable, raising=False)


def test_windows_and_aliases():
    """GR-1: a finding a group has kind, layers and bytes; aliases own nothing."""
    found = details("gemma4")

    assert "gemma4 by gemma4" in found["checkpoint"]
    assert found["cache group 0"] == (
        "window 64, 5 layers, 2.5 KiB a token, at most 6 blocks or 240.0 KiB a row that decodes"
    )
    assert found["cache group 1"] == "full, 1 layer, 1.0 KiB a token"
    assert found["cache aliases"].startswith("4 layers")


def test_states():
    """GR-1: recurrent layers are stated with the bytes of a sequence."""
    found = details("lfm2")

    assert found["recurrent states"] == "5 layers, 7.5 KiB a sequence, whatever its length"
    assert "sidecars of conv_state" in found["persistence"]


def test_a_model_of_one_kind():
    """GR-1: a model of full attention alone has one group, and nothing beside it."""
    found = details("qwen3")

    assert list(found) == ["checkpoint", "tokenizer", "cache group 0", "persistence"]
    assert found["persistence"] == "no: off unless persist_paged_cache asks for it"


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({}, "yes: persist_paged_cache says on; a prefix has sidecars of sliding_window"),
        ({"paged_block_size": 48}, "no: the window is no multiple of the block size"),
        ({"use_block_paged_cache": False}, "no: the flat path keeps no blocks"),
    ],
)
def test_persistence_is_what_a_load_would_decide(tmp_path, settings, answer):
    """UX-2: the answer is the one that `load` gives, with its reason."""
    model = shutil.copytree(CHECKPOINTS / "muse_glimmer", tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    config |= {"persist_paged_cache": True, **settings}
    (model / "config.json").write_text(json.dumps(config))

    assert details(model)["persistence"].startswith(answer)


def test_no_weight_is_read(tmp_path):
    """UX-2: what the weights are does not matter, as long as their header can be read."""
    shutil.copytree(CHECKPOINTS / "qwen3", tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    size = weights.stat().st_size
    header = 8 + int.from_bytes(weights.read_bytes()[:8], "little")
    with weights.open("r+b") as file:
        file.truncate(header)
        file.truncate(size)  # zeros, and no block of them on disk

    assert [f.status for f in checkpoint_findings(str(weights.parent))] == ["ok"] * 4


def _without_tokenizer(model):
    (model / "tokenizer.json").unlink()


def _truncate(model):
    with (model / "model.safetensors").open("r+b") as file:
        file.truncate(file.seek(0, 2) - 1)


def _garble(model):
    (model / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("harm", "name", "detail", "advice"),
    [
        (_without_tokenizer, "tokenizer", "tokenizer.json", "download tokenizer.json"),
        (_truncate, "checkpoint", "is truncated", "download the files again"),
        (_garble, "checkpoint", "config.json: is not valid JSON", "download config.json again"),
        (shutil.rmtree, "checkpoint", "no such file or dir", "give a folder, a .gguf file"),
    ],
)
def test_advice_is_about_the_fault(tmp_path, harm, name, detail, advice):
    """UX-2: each fault has its own way out."""
    model = shutil.copytree(CHECKPOINTS / "qwen3", tmp_path / "model")
    harm(model)
    (found,) = (f for f in checkpoint_findings(str(model)) if f.status != "ok")

    assert found.name == name
    assert detail in found.detail
    assert advice in found.advice


@pytest.mark.parametrize("model_type", ["phi3", None])
def test_a_checkpoint_that_cannot_be_loaded(tmp_path, model_type):
    """UX-2: what `load` would refuse is one broken finding, with what to do."""
    shutil.copytree(CHECKPOINTS / "qwen3", tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": model_type}))
    (finding,) = checkpoint_findings(str(tmp_path / "model"))

    assert (finding.name, finding.status) == ("checkpoint", "broken")
    assert finding.advice
