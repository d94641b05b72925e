"""Quantised copies of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from neve.testing.quantise import quantise_checkpoint
from neve.testing.subject import Subject

pytestmark = pytest.mark.mlx

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "qwen3"
LINEAR = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize(
    ("mode", "group_size", "bits", "parts"),
    [("affine", 64, 4, {"weight", "scales", "biases"}), ("mxfp8", 32, 8, {"weight", "scales"})],
)
def test_layers_are_quantised_and_nothing_else(tmp_path, mode, group_size, bits, parts):
    """FA: linear layers and embeddings become packed weights; norms stay as they are."""
    subject = Subject.of("qwen3", CHECKPOINT)
    quantise_checkpoint(subject, tmp_path, mode=mode, group_size=group_size, bits=bits)
    stored: Any = mx.load(str(tmp_path / "model.safetensors"))

    assert {n.removeprefix(f"{LINEAR}.") for n in stored if n.startswith(LINEAR)} == parts
    assert stored[f"{LINEAR}.weight"].dtype == mx.uint32
    assert stored[f"{LINEAR}.weight"].shape == (192, 384 * bits // 32)
    assert stored["model.embed_tokens.weight"].dtype == mx.uint32
    assert stored["model.norm.weight"].dtype == mx.bfloat16


def test_copy_says_how_it_is_quantised_and_has_no_goldens(tmp_path):
    """FA: config.json states the format; the unquantised model's goldens stay behind."""
    subject = Subject.of("qwen3", CHECKPOINT)
    quantise_checkpoint(subject, tmp_path, mode="affine", group_size=32, bits=8)
    config = json.loads((tmp_path / "config.json").read_text())

    assert config["quantization"] == {"group_size": 32, "bits": 8, "mode": "affine"}
    assert (tmp_path / "tokenizer.json").is_file()
    assert not (tmp_path / "golden.json").exists()
    assert Subject.of("qwen3", tmp_path).goldens is None
