"""Qwen3's model: its heads, and mlx-lm's implementation as a reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

import neve
from neve.testing import variants
from neve.testing.golden import read_goldens
from neve.testing.parity import LOGIT_TOLERANCE, logit_distance

pytestmark = pytest.mark.mlx

IDS = [374, 5, 1031, 88, 4, 2047, 12, 12, 900, 3, 77, 1500] * 20


def logits(path: Path, ids: list[int]) -> np.ndarray:
    with neve.load(path, dtype="float32", paged_cache_memory_mb=8) as model:
        return np.array(model.logits(ids))


@pytest.fixture
def reference() -> Callable[..., Any]:
    """Make mlx-lm's model of a config."""
    variants.mlx_lm_module("qwen3")

    def make(config: dict[str, Any]) -> Any:
        # the oldest keys are those that mlx-lm reads
        theta = config["rope_parameters"]["rope_theta"]
        return variants.mlx_lm_model("qwen3", {**config, "rope_theta": theta})

    return make


def test_tied_checkpoint_may_carry_a_copy_of_the_head(checkpoint, tensors, write_variant):
    """FA-1: a head beside tied embeddings is a copy, and is passed over."""
    copied = write_variant(
        {}, tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}
    )

    assert np.array_equal(logits(copied, IDS), logits(checkpoint, IDS))


def test_untied_head_is_used(checkpoint, tensors, write_variant):
    """FA-1: an untied checkpoint's logits come from its own head."""
    head = tensors["model.embed_tokens.weight"] * 2
    untied = write_variant({"tie_word_embeddings": False}, tensors | {"lm_head.weight": head})

    assert logit_distance(logits(untied, IDS), 2 * logits(checkpoint, IDS)) < LOGIT_TOLERANCE


def test_biases_are_used(checkpoint, tensors, write_variant):
    """FA-1: with `attention_bias`, q, k, v and o have biases."""
    widths = {"q_proj": 256, "k_proj": 128, "v_proj": 128, "o_proj": 192}
    biases = {
        f"model.layers.{layer}.self_attn.{name}.bias": mx.full((width,), 0.5 * (layer == 0))
        for layer in range(6)
        for name, width in widths.items()
    }
    biased = write_variant({"attention_bias": True}, tensors | biases)

    assert logit_distance(logits(biased, IDS), logits(checkpoint, IDS)) > 0.01


def test_logits_equal_mlx_lms(checkpoint, raw_config, tensors, reference):
    """FA-1: an independent implementation computes the same logits from the same weights."""
    model = reference(raw_config)
    model.load_weights(list(tensors.items()))
    goldens = read_goldens(checkpoint)
    assert goldens is not None
    for name in ("recall_mid", "chat_multi"):
        ids = list(goldens.prompt(name).ids)
        expected = np.array(model(mx.array([ids]))[0])

        assert logit_distance(logits(checkpoint, ids), expected) < LOGIT_TOLERANCE


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": False, "num_key_value_heads": 4},
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        {
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        {"head_dim": 48, "num_key_value_heads": 1, "rms_norm_eps": 1e-2},
    ],
    ids=["untied", "linear", "yarn", "narrow"],
)
def test_variants_equal_mlx_lms(changes, raw_config, write_variant, reference):
    """FA-1: config variants, on random weights, against an independent implementation."""
    rope = {"rope_theta": 10_000.0, **changes.get("rope_scaling", {})}
    changes |= {"num_hidden_layers": 2, "rope_parameters": rope}
    model = reference(raw_config | changes)
    parameters: Any = tree_flatten(model.parameters())
    path = write_variant(changes, dict(parameters))
    expected = np.array(model(mx.array([IDS]))[0])

    assert logit_distance(logits(path, IDS), expected) < LOGIT_TOLERANCE
