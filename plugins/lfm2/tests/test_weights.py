"""The conventions of LFM2 weights: each gives the same model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import neve
import neve_lfm2.plugin
from neve.checkpoint.checkpoint import open_checkpoint
from neve.contract.errors import WeightError
from neve.testing.parity import LOGIT_TOLERANCE, logit_distance

pytestmark = pytest.mark.mlx

IDS = [374, 5, 1031, 88, 4, 2047, 12, 12, 900, 3, 77, 1500] * 20
ONE_EXPERT = re.compile(r"(.+)\.experts\.(\d+)\.(w\d)\.(.+)")
MLX_NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def logits(path: Path, num_tokens: int = len(IDS)) -> np.ndarray:
    with neve.load(path, dtype="float32", paged_cache_memory_mb=8) as model:
        return np.array(model.logits(IDS[:num_tokens]))


def stacks(tensors: dict[str, mx.array]) -> dict[tuple[str, str], mx.array]:
    """Return (prefix, projection) -> the experts' tensors, stacked."""
    parts: dict[tuple[str, str], dict[int, mx.array]] = {}
    for name, tensor in tensors.items():
        if match := ONE_EXPERT.fullmatch(name):
            parts.setdefault((match[1], match[3]), {})[int(match[2])] = tensor
    return {key: mx.stack([by[i] for i in range(len(by))]) for key, by in parts.items()}


def without_experts(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    return {name: t for name, t in tensors.items() if not ONE_EXPERT.fullmatch(name)}


def as_mlx(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the tensors as MLX publishes them."""
    rest: dict[str, mx.array] = {}
    for name, tensor in without_experts(tensors).items():
        kernel = name.endswith("conv.conv.weight")
        new = re.sub(r"feed_forward\.(w\d)", lambda m: f"feed_forward.{MLX_NAMES[m[1]]}", name)
        rest[new] = tensor.swapaxes(1, 2) if kernel else tensor
    experts = {
        f"{prefix}.switch_mlp.{MLX_NAMES[w]}.weight": stack
        for (prefix, w), stack in stacks(tensors).items()
    }
    return rest | experts


def as_fused(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the tensors with one for all experts' gates and up projections."""
    fused: dict[str, mx.array] = {}
    by = stacks(tensors)
    for prefix in {prefix for prefix, _ in by}:
        gate_up = mx.concatenate([by[prefix, "w1"], by[prefix, "w3"]], axis=1)
        fused[f"{prefix}.experts.gate_up_proj"] = gate_up
        fused[f"{prefix}.experts.down_proj"] = by[prefix, "w2"]
    return without_experts(tensors) | fused


def as_nested(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the tensors as the text model of a larger one."""
    return {
        name.replace("model.", "model.language_model.", 1): t for name, t in tensors.items()
    }


@pytest.mark.parametrize("convention", [as_mlx, as_fused, as_nested])
def test_conventions(checkpoint, tensors, write_variant, convention: Callable[..., Any]):
    """FA-6: single, stacked and fused experts, and both layouts of kernels, are one model."""
    other = write_variant("lfm2_moe", {}, convention(tensors("lfm2_moe")))

    assert np.array_equal(logits(other), logits(checkpoint("lfm2_moe")))


def test_tied_checkpoint_may_carry_a_copy_of_the_head(checkpoint, tensors, write_variant):
    """FA-5: a head beside tied embeddings is a copy, and is passed over."""
    stored = tensors("lfm2")
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"]

    assert np.array_equal(logits(write_variant("lfm2", {}, stored)), logits(checkpoint("lfm2")))


def test_untied_head_is_used(checkpoint, tensors, write_variant):
    """FA-5: an untied checkpoint's logits come from its own head."""
    stored = tensors("lfm2")
    stored["lm_head.weight"] = 2 * stored["model.embed_tokens.weight"]
    untied = write_variant("lfm2", {"tie_word_embeddings": False}, stored)

    assert logit_distance(logits(untied), 2 * logits(checkpoint("lfm2"))) < LOGIT_TOLERANCE


def test_an_expert_is_missing(tensors, write_variant):
    """FW-2: the error names the stack that one expert is missing from."""
    stored = tensors("lfm2_moe")
    del stored["model.layers.3.feed_forward.experts.2.w3.weight"]

    with pytest.raises(WeightError, match=r"layers\.3\.feed_forward\.experts\.w3.* number 2"):
        logits(write_variant("lfm2_moe", {}, stored))


def test_the_bias_of_the_experts_stays_float32(checkpoint):
    """FA-6: what decides between experts is not rounded with the model."""
    opened = open_checkpoint(checkpoint("lfm2_moe"), dtype=mx.bfloat16)
    config = neve_lfm2.plugin.parse_config(opened.config)
    model: Any = neve_lfm2.plugin.build_model(config, opened.weights)
    mlp = model.model.layers[4].feed_forward

    assert mlp.expert_bias.dtype == mx.float32
    assert mlp.gate.weight.dtype == mlp.experts.up_proj.weight.dtype == mx.bfloat16


def quantised(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the tensors with every matrix of an MLP in eight bits."""
    result: dict[str, mx.array] = {}
    for name, tensor in tensors.items():
        if not is_quantised(name, tensor):
            result[name] = tensor
            continue
        path = name.removesuffix(".weight")
        parts = zip(("weight", "scales", "biases"), mx.quantize(tensor, 64, 8), strict=True)
        result.update({f"{path}.{kind}": part for kind, part in parts})
    return result


def rounded(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the tensors with what the quantised ones stand for."""
    return {
        name: mx.dequantize(*mx.quantize(t, 64, 8), 64, 8) if is_quantised(name, t) else t
        for name, t in tensors.items()
    }


def is_quantised(name: str, tensor: mx.array) -> bool:
    return ".feed_forward." in name and tensor.ndim >= 2


@pytest.mark.parametrize("num_tokens", [1, 20, len(IDS)])
def test_quantised_experts(tensors, write_variant, num_tokens: int):
    """FA-6: quantised experts load one by one and stacked, and compute what they stand for."""
    changes = {"quantization": {"group_size": 64, "bits": 8}}
    stored = tensors("lfm2_moe")
    single = write_variant("lfm2_moe", changes, quantised(stored))
    stacked = write_variant("lfm2_moe", changes, quantised(as_mlx(stored)))
    plain = write_variant("lfm2_moe", {}, rounded(stored))
    result = logits(single, num_tokens)

    assert np.array_equal(result, logits(stacked, num_tokens))
    assert logit_distance(result, logits(plain, num_tokens)) < LOGIT_TOLERANCE


def test_experts_that_are_quantised_differently(tensors, write_variant):
    """FA-6: experts of one stack cannot differ in their quantisation."""
    path = "model.layers.2.feed_forward.experts"
    layers = {f"{path}.0.w1": {"bits": 4}, f"{path}.1.w1": {"bits": 8}}
    changes = {"quantization": {"group_size": 64, "bits": 8, **layers}}

    with pytest.raises(WeightError, match=r"experts\.w1: the parts are quantised differently"):
        logits(write_variant("lfm2_moe", changes, quantised(tensors("lfm2_moe"))))
