"""Layouts of Muse-Glimmer's checkpoints: all are the same model."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import neve
from neve.errors import WeightError
from neve.testing.parity import LOGIT_TOLERANCE, logit_distance

pytestmark = pytest.mark.mlx

IDS = [374, 5, 1031, 88, 4, 2047, 12, 12, 900, 3, 77, 1500] * 8
TEXT = "model.language_model."


def logits(path: Path) -> np.ndarray:
    with neve.load(path, dtype="float32", use_block_paged_cache=False) as model:
        return np.array(model.logits(IDS))


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> np.ndarray:
    """The trained checkpoint's logits."""
    return logits(checkpoint)


def text_only(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    return {
        name.replace(TEXT, "model."): tensor
        for name, tensor in tensors.items()
        if name.startswith((TEXT, "lm_head."))
    }


def as_mlx(tensors: dict[str, mx.array], head: str) -> dict[str, mx.array]:
    """Return the tensors as MLX converters name them, those of vision at the top."""
    names = ((TEXT, "language_model.model."), ("lm_head.", head), ("model.vision", "vision"))
    renamed: dict[str, mx.array] = {}
    for name, tensor in tensors.items():
        before, after = next(pair for pair in names if name.startswith(pair[0]))
        renamed[after + name.removeprefix(before)] = tensor
    return renamed


def test_text_only_checkpoint_is_the_text_model(raw_config, tensors, write_variant, expected):
    """FA-8: its config.json is not nested, its names have no `language_model`."""
    for model_type in ("muse_glimmer_text", "muse_glimmer"):
        config = raw_config["text_config"] | {"model_type": model_type}
        path = write_variant(config, text_only(tensors))

        assert np.array_equal(logits(path), expected)


@pytest.mark.parametrize("head", ["language_model.lm_head.", "language_model.model.lm_head."])
def test_mlx_layout_is_the_same_model(raw_config, tensors, write_variant, expected, head):
    """FA-8: other names for the text model, its head and the vision tower."""
    renamed = as_mlx(tensors, head)

    assert renamed.keys().isdisjoint(tensors)
    assert np.array_equal(logits(write_variant(raw_config, renamed)), expected)


def test_head_of_a_tied_checkpoint(raw_config, tensors, write_variant, expected):
    """FA-8: tied, a head is a copy of the embedding and passed over; untied, it is used."""
    embedding = tensors[f"{TEXT}embed_tokens.weight"]
    text = raw_config["text_config"] | {"tie_word_embeddings": True}
    tied = raw_config | {"text_config": text, "tie_word_embeddings": True}
    headless = {name: t for name, t in tensors.items() if not name.startswith("lm_head.")}
    with_copy = headless | {"lm_head.weight": embedding}
    results = [
        logits(write_variant(tied, headless)),
        logits(write_variant(tied, tensors)),
        logits(write_variant(raw_config, with_copy)),
    ]

    assert np.array_equal(results[0], results[1])
    assert logit_distance(results[2], results[0]) < LOGIT_TOLERANCE
    assert logit_distance(expected, results[0]) > 0.1


def test_an_untied_checkpoint_needs_its_head(raw_config, tensors, write_variant):
    """FA-8: without a head it is not the embedding that takes its place."""
    del tensors["lm_head.weight"]

    with pytest.raises(WeightError, match=r"missing \(lm_head\.weight\)"):
        logits(write_variant(raw_config, tensors))


def test_only_vision_is_passed_over(raw_config, tensors, write_variant):
    """FA-8: any other tensor that no parameter takes is named."""
    stray = {f"{TEXT}vision_norm.weight": mx.zeros((4,)), "vision_extra": mx.zeros((4,))}
    path = write_variant(raw_config, tensors | stray)

    with pytest.raises(WeightError) as caught:
        logits(path)

    assert set(caught.value.unexpected) == set(stray)


def test_biases_of_attention(raw_config, tensors, write_variant, expected):
    """FA-8: with `attention_bias` all projections but the gate have one, and it counts."""
    text = raw_config["text_config"] | {"attention_bias": True}
    config = raw_config | {"text_config": text}
    projections = ("q_proj", "k_proj", "v_proj", "o_proj")
    biases = {
        name.replace(".weight", ".bias"): mx.zeros(tensor.shape[:1])
        for name, tensor in tensors.items()
        if f".{name.split('.')[-2]}" in {f".{p}" for p in projections} and TEXT in name
    }

    assert len(biases) == 8 * len(projections)
    # with biases the gate is a product of its own, whose last bits may differ
    unmoved = logits(write_variant(config, tensors | biases))
    np.testing.assert_allclose(unmoved, expected, atol=1e-4)
    for projection in projections:
        moved = {n: b + (1.0 if projection in n else 0.0) for n, b in biases.items()}
        other = logits(write_variant(config, tensors | moved))

        assert logit_distance(other, expected) > LOGIT_TOLERANCE
