"""The conventions of Nemotron-H weights: each gives the same model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

import neve
import neve_nemotron_h.plugin
from neve.checkpoint.checkpoint import open_checkpoint
from neve.contract.errors import WeightError
from neve.testing.parity import LOGIT_TOLERANCE, logit_distance
from neve_nemotron_h.weights import KEEP_FLOAT32

pytestmark = pytest.mark.mlx

IDS = [374, 5, 1031, 88, 4, 2047, 12, 12, 900, 3, 77, 1500] * 10
ONE_EXPERT = re.compile(r"(.+)\.experts\.(\d+)\.(up_proj|down_proj)\.weight")
MLX_NAMES = {"up_proj": "switch_mlp.fc1.weight", "down_proj": "switch_mlp.fc2.weight"}


def logits(path: Path, num_tokens: int = len(IDS)) -> np.ndarray:
    with neve.load(path, dtype="float32", paged_cache_memory_mb=8) as model:
        return np.array(model.logits(IDS[:num_tokens]))


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> np.ndarray:
    """The trained checkpoint's logits."""
    return logits(checkpoint)


def stacked(
    tensors: dict[str, mx.array], name: Callable[[str, str], str]
) -> dict[str, mx.array]:
    """Return the tensors with the experts' stacked, under `name(prefix, projection)`."""
    parts: dict[str, dict[int, mx.array]] = {}
    rest: dict[str, mx.array] = {}
    for old, tensor in tensors.items():
        if match := ONE_EXPERT.fullmatch(old):
            parts.setdefault(name(match[1], match[3]), {})[int(match[2])] = tensor
        else:
            rest[old] = tensor
    return rest | {new: mx.stack([by[i] for i in range(len(by))]) for new, by in parts.items()}


def as_mlx(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the tensors as MLX publishes them."""
    turned = {
        name: tensor.swapaxes(1, 2) if name.endswith("conv1d.weight") else tensor
        for name, tensor in tensors.items()
    }
    return stacked(turned, lambda prefix, projection: f"{prefix}.{MLX_NAMES[projection]}")


def as_transformers(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the tensors as transformers calls them."""
    whole = stacked(tensors, lambda prefix, projection: f"{prefix}.experts.{projection}")
    return {name.replace("backbone.", "model."): tensor for name, tensor in whole.items()}


def as_nested(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the tensors as the text model of a larger one."""
    return {f"language_model.{name}": tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("convention", [as_mlx, as_transformers, as_nested])
def test_conventions(tensors, write_variant, expected, convention: Callable[..., Any]):
    """FA-7: single and stacked experts, names and kernels of all converters are one model."""
    assert np.array_equal(logits(write_variant({}, convention(tensors))), expected)


def test_the_draft_head_is_passed_over(tensors, write_variant, expected):
    """FA-7, SP-3: weights of the head that drafts tokens are known by name, and not needed."""
    head = {
        "mtp.layers.0.eh_proj.weight": mx.zeros((128, 256)),
        "mtp.layers.0.mixer.q_proj.weight": mx.zeros((256, 128)),
        "mtp.layers.1.mixer.experts.0.up_proj.weight": mx.zeros((64, 128)),
        "mtp.layers.1.mixer.gate.weight": mx.zeros((8, 128)),
    }
    path = write_variant({"num_nextn_predict_layers": 1}, tensors | head)

    assert np.array_equal(logits(path), expected)


def test_only_the_draft_head_is_passed_over(tensors, write_variant):
    """FW-2: any other tensor that no parameter takes is named."""
    stray = {"mtp_extra.weight": mx.zeros((4,)), "backbone.layers.0.mtp.w": mx.zeros((4,))}

    with pytest.raises(WeightError) as caught:
        logits(write_variant({}, tensors | stray))

    assert set(caught.value.unexpected) == set(stray)


@pytest.mark.parametrize("tied", [True, False])
def test_tied_checkpoint_may_carry_a_copy_of_the_head(tensors, write_variant, tied: bool):
    """FA-7: a head beside tied embeddings is a copy and is passed over; untied, it is used."""
    embedding = tensors["backbone.embeddings.weight"]
    untied = write_variant({}, tensors | {"lm_head.weight": embedding})
    head = {"lm_head.weight": 2 * embedding}
    other = write_variant({"tie_word_embeddings": tied}, tensors | head)

    factor = 1 if tied else 2
    assert logit_distance(logits(other), factor * logits(untied)) < LOGIT_TOLERANCE


def test_an_expert_is_missing(tensors, write_variant):
    """FW-2: the error names the stack that one expert is missing from."""
    del tensors["backbone.layers.6.mixer.experts.2.up_proj.weight"]

    with pytest.raises(WeightError, match=r"layers\.6\.mixer\.experts\.up_proj.* number 2"):
        logits(write_variant({}, tensors))


def test_without_a_shared_expert(tensors, write_variant):
    """FA-7: its output is missing from the sum, as if it were zero."""
    changes = {"n_shared_experts": 0}
    without = {k: v for k, v in tensors.items() if ".shared_experts." not in k}
    zeroed = {
        k: mx.zeros_like(v) if k.endswith("shared_experts.down_proj.weight") else v
        for k, v in tensors.items()
    }

    result = logits(write_variant(changes, without))
    assert logit_distance(result, logits(write_variant({}, zeroed))) < LOGIT_TOLERANCE


def built(path: Path, dtype: mx.Dtype) -> Any:
    opened = open_checkpoint(path, dtype=dtype)
    config = neve_nemotron_h.plugin.parse_config(opened.config)
    return neve_nemotron_h.plugin.build_model(config, opened.weights)


def test_what_stays_float32(checkpoint):
    """FA-7: routers, and what makes a state fade, are not rounded with the model."""
    parameters: Any = tree_flatten(built(checkpoint, mx.bfloat16).parameters())
    wide = {name.rpartition(".")[2] for name, p in parameters if p.dtype == mx.float32}
    narrow = {name.rpartition(".")[2] for name, p in parameters if p.dtype == mx.bfloat16}

    assert wide == set(KEEP_FLOAT32)
    assert narrow == {"weight", "bias"}


def test_the_residual_stream_is_not_widened(checkpoint):
    """FA-7: scans, norms and routers are float32 inside and answer in the model's dtype."""
    with neve.load(checkpoint, dtype="bfloat16", paged_cache_memory_mb=8) as model:
        narrow = np.array(model.logits(IDS))
    blocks = built(checkpoint, mx.bfloat16).backbone.layers
    x = mx.random.normal((3, 128)).astype(mx.bfloat16)

    for block in blocks:
        if block.mixer.__class__.__name__ in ("MLP", "MoE"):
            assert block.mixer(x).dtype == mx.bfloat16
    assert logit_distance(narrow, logits(checkpoint)) < 0.05


def quantised(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the tensors with every matrix of an expert in eight bits."""
    result: dict[str, mx.array] = {}
    for name, tensor in tensors.items():
        if not is_quantised(name):
            result[name] = tensor
            continue
        path = name.removesuffix(".weight")
        parts = zip(("weight", "scales", "biases"), mx.quantize(tensor, 64, 8), strict=True)
        result.update({f"{path}.{kind}": part for kind, part in parts})
    return result


def is_quantised(name: str) -> bool:
    return ".experts." in name or ".switch_mlp." in name


@pytest.mark.parametrize("num_tokens", [1, 20, len(IDS)])
def test_quantised_experts(tensors, write_variant, num_tokens: int):
    """FA-7: quantised experts load one by one and stacked, and compute what they stand for."""
    changes = {"quantization": {"group_size": 64, "bits": 8}}
    single = write_variant(changes, quantised(tensors))
    stack = write_variant(changes, quantised(as_mlx(tensors)))
    rounded = {
        name: mx.dequantize(*mx.quantize(t, 64, 8), 64, 8) if is_quantised(name) else t
        for name, t in tensors.items()
    }
    result = logits(single, num_tokens)

    assert np.array_equal(result, logits(stack, num_tokens))
    plain = logits(write_variant({}, rounded), num_tokens)
    assert logit_distance(result, plain) < LOGIT_TOLERANCE


NVFP4: dict[str, Any] = {"group_size": 16, "bits": 4, "mode": "nvfp4"}
LARGEST_NVFP4 = 448.0 * 6.0  # of a group's scale, and of an element


def with_global_scales(
    tensors: dict[str, mx.array],
) -> list[dict[str, mx.array]]:
    """Return experts in NVFP4, each with a global scale, and two plain forms of them.

    The first plain form has the values that the format means. The second is what they become
    when the global scale is folded into the scales of groups, which have eight bits.
    """
    packed, meant, folded = dict(tensors), dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if ".experts." not in name:
            continue
        scale = mx.abs(weight).max() / LARGEST_NVFP4
        path = name.removesuffix(".weight")
        words, scales, *_ = mx.quantize(weight / scale, **NVFP4)
        packed |= {name: words, f"{path}.scales": scales, f"{path}.global_scales": scale}
        wide = mx.dequantize(words, scales, **NVFP4).astype(mx.float32)
        meant[name] = wide * scale
        eight_bits = mx.to_fp8(mx.from_fp8(scales, mx.float32) * scale)
        folded[name] = mx.dequantize(words, eight_bits, **NVFP4).astype(mx.float32)
    return [packed, meant, folded]


@pytest.mark.parametrize("convention", [dict, as_mlx])
def test_nvfp4_with_a_global_scale_for_each_expert(
    tensors, write_variant, convention: Callable[..., Any]
):
    """FA-7: a factor on each projection's output, and never folded into the groups' scales."""
    packed, meant, folded = with_global_scales(tensors)
    actual = logits(write_variant({"quantization": NVFP4}, convention(packed)))
    expected, rounded = (logits(write_variant({}, plain)) for plain in (meant, folded))

    assert logit_distance(actual, expected) < LOGIT_TOLERANCE
    assert logit_distance(rounded, expected) > 10 * LOGIT_TOLERANCE


def test_a_global_scale_that_no_layer_takes_is_named(tensors, write_variant):
    """FW-2: beside a layer that has none, it is unexpected, not dropped."""
    name = "backbone.layers.2.mixer.q_proj"
    weight, scales, *_ = mx.quantize(tensors[f"{name}.weight"], **NVFP4)
    stray = {f"{name}.global_scales": mx.array(1.0)}
    packed = {f"{name}.weight": weight, f"{name}.scales": scales}

    with pytest.raises(WeightError) as caught:
        logits(write_variant({"quantization": NVFP4}, tensors | packed | stray))

    assert caught.value.unexpected == (f"{name}.global_scales",)
