"""mlx-lm's implementation as a reference, also for what no checkpoint here has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

import neve
from neve.testing import variants
from neve.testing.golden import read_goldens
from neve.testing.parity import LOGIT_TOLERANCE, logit_distance

pytestmark = pytest.mark.mlx

IDS = [374, 5, 1031, 88, 4, 2047, 12, 12, 900, 3, 77, 1500] * 12


def logits(path: Path, ids: list[int]) -> np.ndarray:
    with neve.load(path, dtype="float32", paged_cache_memory_mb=8) as model:
        return np.array(model.logits(ids))


@pytest.fixture
def reference() -> Callable[..., Any]:
    """Make mlx-lm's model of a config, with random weights."""
    variants.mlx_lm_module("nemotron_h")
    return partial(variants.mlx_lm_model, "nemotron_h")


def parameters(model: nn.Module) -> dict[str, mx.array]:
    flat: Any = tree_flatten(model.parameters())
    return dict(flat)


def test_logits_equal_mlx_lms(checkpoint, raw_config, tensors, reference):
    """FA-7: an independent implementation computes the same from the same weights."""
    model = reference(raw_config)
    model.load_weights(list(model.sanitize(tensors).items()))
    goldens = read_goldens(checkpoint)
    assert goldens is not None
    ids = list(goldens.prompt("chat_multi").ids)
    expected = np.array(model(mx.array([ids]))[0])

    assert logit_distance(logits(checkpoint, ids), expected) < LOGIT_TOLERANCE


BIASES = {"use_bias": True, "mamba_proj_bias": True, "mlp_bias": True, "attention_bias": True}


@pytest.mark.parametrize(
    "changes",
    [
        BIASES,
        {"use_conv_bias": False, "conv_kernel": 3, "chunk_size": 100},
        {"n_groups": 4, "mamba_head_dim": 16, "ssm_state_size": 24},
        {"n_groups": 1, "mamba_num_heads": 6, "layer_norm_epsilon": 1e-2},
        {"time_step_limit": [0.2, 0.6]},
        {"time_step_limit": None, "time_step_min": 0.5, "time_step_max": 0.6},
        {"num_key_value_heads": 1, "head_dim": 24},
        {"moe_latent_size": 48, "mlp_bias": True, "num_experts_per_tok": 3},
        {"norm_topk_prob": False, "routed_scaling_factor": 1.0},
        {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3},
        {"n_routed_experts": 5, "moe_shared_expert_intermediate_size": 32},
        {"hybrid_override_pattern": "M*-M"},
        {
            "hybrid_override_pattern": None,
            "layers_block_type": ["moe", "mamba", "attention", "mlp", "mamba"],
        },
    ],
)
def test_variants_equal_mlx_lms(changes, raw_config, write_variant, reference):
    """FA-7: config variants, on random weights, against an independent implementation."""
    model = reference(raw_config | changes)
    weights = parameters(model)
    for name, tensor in weights.items():  # none of these is random there
        if name.endswith(("bias", "norm.weight", ".D", "A_log")):
            weights[name] = 0.5 + 0.5 * mx.random.uniform(shape=tensor.shape)
        if name.endswith("gate.weight"):
            weights[name] = mx.random.normal(tensor.shape)
    model.load_weights(list(weights.items()))
    path = write_variant(changes, weights)
    expected = np.array(model(mx.array([IDS]))[0])

    assert logit_distance(logits(path, IDS), expected) < LOGIT_TOLERANCE


@pytest.mark.parametrize(
    ("bits", "group_size", "mode"),
    [
        (4, 64, "affine"),
        (8, 32, "affine"),
        (4, 32, "mxfp4"),
        (8, 32, "mxfp8"),
        (4, 16, "nvfp4"),
    ],
)
def test_a_checkpoint_that_mlx_lm_quantised(
    bits, group_size, mode, raw_config, tensors, write_variant, reference
):
    """FA-7: weights quantised by MLX's tools, experts and all, some in more bits."""
    model = reference(raw_config)
    model.load_weights(list(model.sanitize(tensors).items()))
    default = {"group_size": group_size, "bits": bits, "mode": mode}
    finer = {"group_size": 64, "bits": 8, "mode": "affine"}
    layers: dict[str, Any] = {}

    def how(path: str, layer: nn.Module) -> bool | dict[str, Any]:
        if path.endswith("layers.1.mixer.switch_mlp.fc2") or path == "lm_head":
            layers[path] = finer
            return finer
        return hasattr(layer, "to_quantized") and "norm" not in path

    nn.quantize(model, **default, class_predicate=how)
    path = write_variant({"quantization": default | layers}, parameters(model))
    expected = np.array(model(mx.array([IDS]))[0])

    assert len(layers) == 2
    assert logit_distance(logits(path, IDS), expected) < LOGIT_TOLERANCE
