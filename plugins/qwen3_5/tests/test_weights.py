"""Layouts of Qwen3.5's checkpoints: all are the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

import neve
from neve.errors import WeightError
from neve.testing.parity import LOGIT_TOLERANCE, logit_distance

pytestmark = pytest.mark.mlx

IDS = [374, 5, 1031, 88, 4, 2047, 12, 12, 900, 3, 77, 1500] * 10

TEXT = "model.language_model."


def load(path: Path, **settings: Any) -> neve.Model:
    defaults: dict[str, Any] = {"dtype": "float32", "paged_cache_memory_mb": 8}
    return neve.load(path, **(defaults | settings))


def logits(path: Path, ids: list[int] = IDS) -> np.ndarray:
    with load(path) as model:
        return np.array(model.logits(ids))


def text_only(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the tensors of the text model under the names of a text-only checkpoint."""
    return {
        name.replace(TEXT, "model."): tensor
        for name, tensor in tensors.items()
        if name.startswith((TEXT, "lm_head."))
    }


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> np.ndarray:
    """The trained checkpoint's logits."""
    return logits(checkpoint)


def arrays(model: Any) -> dict[str, mx.array]:
    parameters: Any = tree_flatten(model.parameters())
    return dict(parameters)


def test_text_only_checkpoint_is_the_text_model(raw_config, tensors, write_variant, expected):
    """FA-2: its config.json is not nested, its names have no `language_model`."""
    text = raw_config["text_config"]
    path = write_variant(text, text_only(tensors))

    assert np.array_equal(logits(path), expected)


def test_tied_checkpoint_may_carry_a_copy_of_the_head(
    raw_config, tensors, write_variant, expected
):
    """FA-2: a head beside tied embeddings is a copy and is passed over; untied, it is used."""
    text = raw_config["text_config"]
    tied = text["tie_word_embeddings"]
    head = tensors.get("lm_head.weight", tensors[f"{TEXT}embed_tokens.weight"])
    path = write_variant(raw_config, tensors | {"lm_head.weight": 2 * head})

    assert logit_distance(logits(path), expected if tied else 2 * expected) < LOGIT_TOLERANCE


def test_only_towers_and_draft_heads_are_passed_over(raw_config, tensors, write_variant):
    """FA-2: any other tensor that no parameter takes is named."""
    stray = {f"{TEXT}visual_norm.weight": mx.zeros((4,)), "mtp_extra": mx.zeros((4,))}
    path = write_variant(raw_config, tensors | stray)

    with pytest.raises(WeightError) as caught:
        load(path)

    assert set(caught.value.unexpected) == set(stray)


def test_mlx_layout_is_the_same_model(converted, raw_config, write_variant, tensors, expected):
    """FA-2: kernels turned round, the one added to norms, experts apart, other names."""
    weights = arrays(converted)
    path = write_variant(raw_config, weights | {"vision_tower.blocks.0.bias": mx.zeros((4,))})

    assert weights.keys().isdisjoint(tensors)
    assert logit_distance(logits(path), expected) < LOGIT_TOLERANCE


def test_experts_may_lie_one_by_one(raw_config, tensors, write_variant, expected):
    """FA-3: `experts.3.gate_proj.weight` and its like are stacked."""
    if "moe" not in raw_config["model_type"]:
        pytest.skip("a dense model has no experts")
    single: dict[str, mx.array] = {}
    for name, tensor in tensors.items():
        stem, found, projection = name.partition(".experts.")
        if not found:
            single[name] = tensor
            continue
        halves = projection == "gate_up_proj"
        parts = zip(
            ("gate_proj", "up_proj") if halves else (projection,),
            tensor.split(2, axis=1) if halves else (tensor,),
            strict=True,
        )
        for part, stack in parts:
            for i in range(stack.shape[0]):
                single[f"{stem}.experts.{i}.{part}.weight"] = stack[i]
    path = write_variant(raw_config, single)

    assert np.array_equal(logits(path), expected)
