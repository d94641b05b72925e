"""Goldens, read from beside the weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from neve.errors import CheckpointError
from neve.testing.golden import read_goldens

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
FAMILIES = sorted(path.parent.name for path in CHECKPOINTS.glob("*/golden.json"))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tiny_checkpoint_has_goldens(family: str):
    """TG-5: nineteen prompts, each answer with a margin a token, logits of four of them."""
    goldens = read_goldens(CHECKPOINTS / family)
    assert goldens is not None

    assert len(goldens.prompts) == 19
    for prompt in goldens.prompts:
        assert 1 <= len(prompt.f32.tokens) == len(prompt.f32.margins) <= prompt.max_new
    assert len(goldens.logits) == 4
    for prompt_id, golden in goldens.logits.items():
        assert golden.positions.max() < len(goldens.prompt(prompt_id).ids)
        assert golden.logits.shape == (len(golden.positions), 4096)
        assert golden.logits.dtype == np.float32


def test_no_goldens(tmp_path: Path):
    """FW-6: a checkpoint need not have any."""
    assert read_goldens(tmp_path) is None


def test_goldens_without_logits(tmp_path: Path):
    """FW-6: answers alone will do."""
    answer = {"tokens": [3], "margins": [2]}
    prompt = {"id": "a", "ids": [1, 2], "max_new": 1, "f32": answer, "text": "more"}
    (tmp_path / "golden.json").write_text(json.dumps({"prompts": [prompt]}))
    goldens = read_goldens(tmp_path)
    assert goldens is not None

    assert goldens.prompt("a").f32.margins == (2.0,)
    assert goldens.logits == {}


@pytest.mark.parametrize(
    ("text", "word"),
    [("{", "is not JSON"), ("{}", "prompts"), ('{"prompts": [{"id": 1}]}', r"prompts\[0\]")],
)
def test_malformed_goldens_are_named(tmp_path: Path, text: str, word: str):
    """FW-6: a golden.json that cannot be read says where."""
    (tmp_path / "golden.json").write_text(text)
    with pytest.raises(CheckpointError, match=word):
        read_goldens(tmp_path)
