"""Layouts of Gemma 4's checkpoints: all are the same model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import neve
from neve.contract.errors import WeightError
from neve.testing.parity import LOGIT_TOLERANCE, logit_distance

pytestmark = pytest.mark.mlx

IDS = [374, 5, 1031, 88, 4, 2047, 12, 12, 900, 3, 77, 1500] * 10

TEXT = "model.language_model."
TOWERS = ("model.vision_tower.", "model.embed_vision.")


def logits(path: Path) -> np.ndarray:
    with neve.load(path, dtype="float32", use_block_paged_cache=False) as model:
        return np.array(model.logits(IDS))


def as_text_only(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the text model's tensors under the names of a text-only checkpoint."""
    text = {name: t for name, t in tensors.items() if not name.startswith(TOWERS)}
    return {name.replace(TEXT, "model."): t for name, t in text.items()}


def as_mlx(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the tensors as MLX converters write them."""
    renamed: dict[str, mx.array] = {}
    for name, tensor in tensors.items():
        new = name.replace(TEXT, "language_model.model.").removeprefix("model.")
        stem, found, projection = new.partition(".experts.")
        if not found:
            renamed[new] = tensor
        elif projection == "down_proj":
            renamed[f"{stem}.experts.switch_glu.down_proj.weight"] = tensor
        else:
            for half, part in zip(("gate", "up"), tensor.split(2, axis=1), strict=True):
                renamed[f"{stem}.experts.switch_glu.{half}_proj.weight"] = part
    return renamed


def with_single_experts(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the tensors with experts one by one."""
    single: dict[str, mx.array] = {}
    for name, tensor in as_mlx(tensors).items():
        stem, found, projection = name.partition(".switch_glu.")
        if found:
            single |= {f"{stem}.{i}.{projection}": t for i, t in enumerate(tensor)}
        else:
            single[name] = tensor
    return single


def with_sounds(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the tensors with those of an audio tower and of older converters."""
    names = ("model.audio_tower.layers.0.norm", "model.embed_audio.embedding_projection")
    others = ("vision_embedder.pos_norm", "multi_modal_projector.linear")
    return tensors | {f"{name}.weight": mx.zeros((4,)) for name in (*names, *others)}


@pytest.mark.parametrize("layout", [as_text_only, as_mlx, with_single_experts, with_sounds])
def test_layouts(
    name, checkpoint, raw_config, tensors, write_variant, layout: Callable[..., Any]
):
    """FA-4: nested or not, experts fused, stacked or single, with towers: one model."""
    raw = raw_config(name)
    config = raw["text_config"] if layout is as_text_only else raw
    path = write_variant(config, layout(tensors(name)))

    assert np.array_equal(logits(path), logits(checkpoint(name)))


def test_leftover_keys_of_shared_layers_are_passed_over(
    checkpoint, raw_config, tensors, write_variant
):
    """FA-4: layers that read another one's keys may still carry their own, unused."""
    stored = tensors("gemma4")
    kinds = ("k_proj", "v_proj", "k_norm")
    stems = [(f"{TEXT}layers.{i}.self_attn.{kind}", kind) for i in (6, 9) for kind in kinds]
    leftovers = {f"{stem}.weight": mx.ones((3, 5)) for stem, _ in stems}
    path = write_variant(raw_config("gemma4"), stored | leftovers)

    assert leftovers.keys().isdisjoint(stored)
    assert np.array_equal(logits(path), logits(checkpoint("gemma4")))


@pytest.mark.parametrize(
    ("base", "stray"),
    [
        ("gemma4", "layers.10.self_attn.k_proj.weight"),
        ("gemma4", "layers.6.self_attn.k_scale"),
        ("gemma4_moe", "layers.2.self_attn.v_proj.weight"),
        ("gemma4_moe", "embed_visions.weight"),
    ],
)
def test_nothing_else_is_passed_over(base, stray, raw_config, tensors, write_variant):
    """FW-2: values where keys are values, or an unknown name, are unexpected."""
    path = write_variant(raw_config(base), tensors(base) | {TEXT + stray: mx.zeros((4,))})

    with pytest.raises(WeightError) as caught:
        logits(path)

    assert caught.value.unexpected == (TEXT + stray,)


def test_tied_checkpoint_may_carry_a_copy_of_the_head(
    checkpoint, raw_config, tensors, write_variant
):
    """FA-4: a head beside tied embeddings is a copy, and is passed over."""
    stored = tensors("gemma4_moe")
    head = {"lm_head.weight": 2 * stored[f"{TEXT}embed_tokens.weight"]}
    path = write_variant(raw_config("gemma4_moe"), stored | head)

    assert np.array_equal(logits(path), logits(checkpoint("gemma4_moe")))


def test_untied_head_is_used_under_the_softcap(checkpoint, raw_config, tensors, write_variant):
    """FA-4: an untied checkpoint's logits come from its own head, and are bounded after it."""
    stored = tensors("gemma4_moe")
    head = {"language_model.lm_head.weight": 2 * stored[f"{TEXT}embed_tokens.weight"]}
    path = write_variant(raw_config("gemma4_moe", tie_word_embeddings=False), stored | head)
    before = np.arctanh(logits(checkpoint("gemma4_moe")).astype(np.float64) / 30)

    assert logit_distance(logits(path), 30 * np.tanh(2 * before)) < LOGIT_TOLERANCE


def test_attention_may_have_biases(checkpoint, raw_config, tensors, write_variant):
    """FA-4: with `attention_bias` all projections around attention have one."""
    stored = tensors("gemma4")
    weight = re.compile(r"(.+language_model.+self_attn\.\w_proj)\.weight")
    biases = {
        f"{match[1]}.bias": mx.zeros(tensor.shape[:1])
        for name, tensor in stored.items()
        if (match := weight.fullmatch(name))
    }
    config = raw_config("gemma4", attention_bias=True)
    path = write_variant(config, stored | biases)
    moved = write_variant(config, stored | {n: b + 0.1 for n, b in biases.items()})
    expected = logits(checkpoint("gemma4"))

    assert len(biases) == 6 * 4 + 4 * 2
    assert logit_distance(logits(path), expected) < LOGIT_TOLERANCE
    assert logit_distance(logits(moved), expected) > 1e-3


def test_an_expert_is_missing(raw_config, tensors, write_variant):
    """FW-2: the error names the stack that one expert is missing from."""
    stored = with_single_experts(tensors("gemma4_moe"))
    del stored["language_model.model.layers.3.experts.2.up_proj.weight"]

    with pytest.raises(WeightError, match=r"layers\.3\.experts\.up_proj.* number 2"):
        logits(write_variant(raw_config("gemma4_moe"), stored))
