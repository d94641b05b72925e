"""mlx-lm's implementation as a reference, also for what no checkpoint here has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

import neve
from neve.testing.golden import read_goldens
from neve.testing.parity import LOGIT_TOLERANCE, logit_distance

pytestmark = pytest.mark.mlx

IDS = [374, 5, 1031, 88, 4, 2047, 12, 12, 900, 3, 77, 1500] * 10

THIRTY_ONE_B: dict[str, Any] = {
    "attention_k_eq_v": True,
    "num_key_value_heads": 4,
    "num_global_key_value_heads": 2,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "use_double_wide_mlp": False,
}
"""A dense model without embeddings for each layer, whose full layers have no values."""


def logits(path: Path, ids: list[int] = IDS) -> np.ndarray:
    with neve.load(path, dtype="float32", use_block_paged_cache=False) as model:
        return np.array(model.logits(ids))


def parameters(model: nn.Module) -> dict[str, mx.array]:
    flat: Any = tree_flatten(model.parameters())
    return dict(flat)


def shaken(model: nn.Module) -> dict[str, mx.array]:
    """Give norms and scalars weights of their own, and return all parameters.

    Those of queries and keys are small: sharp attention on random weights turns roundings
    into other texts.
    """
    weights = parameters(model)
    for name, tensor in weights.items():
        if tensor.ndim == 1:
            size = 0.2 if name.endswith(("q_norm.weight", "k_norm.weight")) else 0.5
            weights[name] = size * (1 + mx.random.uniform(shape=tensor.shape))
    model.load_weights(list(weights.items()))
    return weights


def trained(model: Any, tensors: dict[str, mx.array]) -> Any:
    model.load_weights(list(model.sanitize(tensors).items()))
    return model


def test_logits_equal_mlx_lms(name, checkpoint, raw_config, tensors, reference):
    """FA-4: an independent implementation computes the same from the same weights."""
    model = trained(reference(raw_config(name)), tensors(name))
    goldens = read_goldens(checkpoint(name))
    assert goldens is not None
    ids = list(goldens.prompt("chat_multi").ids)
    expected = np.array(model(mx.array([ids]))[0])

    assert logit_distance(logits(checkpoint(name), ids), expected) < LOGIT_TOLERANCE


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "31b": ("gemma4", THIRTY_ONE_B),
    "half-shared": ("gemma4", {"num_kv_shared_layers": 5, "use_double_wide_mlp": False}),
    # norms hide the size of what they norm, unless eps is large
    "eps": ("gemma4", {"num_kv_shared_layers": 1, "rms_norm_eps": 1e-2}),
    "embeddings": ("gemma4", {"hidden_size_per_layer_input": 48, "rms_norm_eps": 1e-4}),
    "window": ("gemma4", {"sliding_window": 5, "final_logit_softcapping": None}),
    "pattern": ("gemma4", {"layer_types": None, "num_key_value_heads": 2}),
    "untied": ("gemma4", {"num_global_key_value_heads": 2, "tie_word_embeddings": False}),
    "experts": ("gemma4_moe", {"num_experts": 5, "top_k_experts": 3, "rms_norm_eps": 1e-2}),
    "experts-shared": (
        "gemma4_moe",
        {"num_kv_shared_layers": 3, "hidden_size_per_layer_input": 16},
    ),
    "values": ("gemma4_moe", {"attention_k_eq_v": False, "global_head_dim": 64}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_equal_mlx_lms(variant, raw_config, write_variant, reference):
    """FA-4: config variants, on random weights, against an independent implementation."""
    base, changes = VARIANTS[variant]
    config = raw_config(base, **changes)
    model = reference(config)
    path = write_variant(config, shaken(model))
    expected = np.array(model(mx.array([IDS]))[0])

    assert logit_distance(logits(path), expected) < LOGIT_TOLERANCE


@pytest.mark.parametrize(
    "full",
    [
        {"rope_type": "proportional", "partial_rotary_factor": 0.75, "rope_theta": 5e3},
        {"rope_type": "proportional", "factor": 4.0, "rope_theta": 5e3},
        {"rope_type": "default", "rope_theta": 2e4},
    ],
    ids=["partial", "factor", "default"],
)
def test_rotary_rules_equal_mlx_lms(full, raw_config, write_variant, reference):
    """FA-4: each rule of full layers, and another base in sliding ones."""
    sliding = {"rope_type": "default", "rope_theta": 300.0}
    rope = {"full_attention": full, "sliding_attention": sliding}
    config = raw_config("gemma4_moe", rope_parameters=rope)
    model = reference(config)
    path = write_variant(config, shaken(model))
    expected = np.array(model(mx.array([IDS]))[0])

    assert logit_distance(logits(path), expected) < LOGIT_TOLERANCE


@pytest.mark.parametrize(
    ("mode", "group_size", "bits"),
    [
        ("affine", 64, 4),
        ("affine", 32, 8),
        ("mxfp4", 32, 4),
        ("mxfp8", 32, 8),
        ("nvfp4", 16, 4),
    ],
)
def test_quantised_checkpoints_compute_what_they_stand_for(
    name, raw_config, tensors, write_variant, reference, mode, group_size, bits
):
    """FA-4: as `mlx_lm.convert -q` writes it, routers with more bits than the rest."""
    model = trained(reference(raw_config(name)), tensors(name))
    usual = {"group_size": group_size, "bits": bits, "mode": mode}
    router = {"group_size": 64, "bits": 8, "mode": "affine"}
    hows: dict[str, dict[str, Any]] = {}

    def how(path: str, layer: Any) -> bool | dict[str, Any]:
        if not hasattr(layer, "to_quantized") or layer.weight.shape[-1] % group_size:
            return False
        hows[path] = router if path.endswith("router.proj") else usual
        return hows[path]

    nn.quantize(model, group_size, bits, mode=mode, class_predicate=how)
    weights = parameters(model)
    layers = {path: layer for path, layer in hows.items() if layer is router}
    config = raw_config(name) | {"quantization": usual | layers}
    plain = reference(raw_config(name))
    plain.load_weights(list(meant(weights, hows).items()))
    expected = np.array(plain(mx.array([IDS]))[0])
    found = logits(write_variant(config, weights))

    assert len(hows) > 40
    assert bool(layers) == (name == "gemma4_moe")
    assert logit_distance(found, expected) < LOGIT_TOLERANCE


def meant(weights: dict[str, mx.array], hows: dict[str, Any]) -> dict[str, mx.array]:
    """Return parameters with what the quantised ones stand for, in float32."""
    result = dict(weights)
    for path, how in hows.items():
        packed, scales = weights[f"{path}.weight"], result.pop(f"{path}.scales")
        biases = result.pop(f"{path}.biases", None)
        dense = mx.dequantize(packed, scales, biases, dtype=mx.float32, **how)
        result[f"{path}.weight"] = dense
    return result
