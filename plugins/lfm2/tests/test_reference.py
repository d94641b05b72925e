"""mlx-lm's implementations as a reference, also for what no checkpoint here has."""

from __future__ import annotations

from collections.abc import Callable
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

IDS = [374, 5, 1031, 88, 4, 2047, 12, 12, 900, 3, 77, 1500] * 20


def logits(path: Path, ids: list[int]) -> np.ndarray:
    with neve.load(path, dtype="float32", paged_cache_memory_mb=8) as model:
        return np.array(model.logits(ids))


@pytest.fixture
def reference() -> Callable[..., Any]:
    """Make mlx-lm's model of a config, with random weights."""
    variants.mlx_lm_module("lfm2")
    return lambda config: variants.mlx_lm_model(config["model_type"], config)


def parameters(model: nn.Module) -> dict[str, mx.array]:
    flat: Any = tree_flatten(model.parameters())
    return dict(flat)


def test_logits_equal_mlx_lms(name, checkpoint, raw_config, tensors, reference):
    """FA-5, FA-6: an independent implementation computes the same from the same weights."""
    model = reference(raw_config(name))
    model.load_weights(list(model.sanitize(tensors(name)).items()))
    goldens = read_goldens(checkpoint(name))
    assert goldens is not None
    for prompt in ("recall_mid", "chat_multi"):
        ids = list(goldens.prompt(prompt).ids)
        expected = np.array(model(mx.array([ids]))[0])

        assert logit_distance(logits(checkpoint(name), ids), expected) < LOGIT_TOLERANCE


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("lfm2", {"conv_bias": True, "conv_L_cache": 4}),
        ("lfm2", {"layer_types": None, "full_attn_idxs": [0, 3, 5]}),
        ("lfm2", {"block_auto_adjust_ff_dim": False, "num_key_value_heads": 3}),
        ("lfm2", {"block_ffn_dim_multiplier": 1.3, "block_multiple_of": 96}),
        ("lfm2", {"rope_parameters": {"rope_theta": 1e4}, "norm_eps": 1e-2}),
        ("lfm2_moe", {"norm_topk_prob": False, "num_experts_per_tok": 3}),
        ("lfm2_moe", {"routed_scaling_factor": 2.5, "num_dense_layers": 0}),
        ("lfm2_moe", {"use_expert_bias": False, "num_experts": 5, "conv_bias": True}),
    ],
)
def test_variants_equal_mlx_lms(model_type, changes, raw_config, write_variant, reference):
    """FA-5, FA-6: config variants, on random weights, against an independent implementation."""
    model = reference(raw_config(model_type) | changes)
    weights = parameters(model)
    for name, tensor in weights.items():  # neither is random there
        if name.endswith(("bias", "norm.weight")):
            weights[name] = 0.5 + 0.5 * mx.random.uniform(shape=tensor.shape)
    model.load_weights(list(weights.items()))
    path = write_variant(model_type, changes, weights)
    expected = np.array(model(mx.array([IDS]))[0])

    assert logit_distance(logits(path, IDS), expected) < LOGIT_TOLERANCE


def test_a_checkpoint_that_mlx_lm_quantised(
    name, raw_config, tensors, write_variant, reference
):
    """FA-5, FA-6: weights quantised by MLX's tools, the router in more bits than the rest."""
    model = reference(raw_config(name))
    model.load_weights(list(model.sanitize(tensors(name)).items()))
    router = {"group_size": 64, "bits": 8}
    layers: dict[str, Any] = {}

    def how(path: str, layer: nn.Module) -> bool | dict[str, int]:
        if path.endswith("feed_forward.gate"):
            layers[path] = router
            return router
        return hasattr(layer, "to_quantized")

    nn.quantize(model, 64, 4, class_predicate=how)
    changes = {"quantization": {"group_size": 64, "bits": 4, **layers}}
    path = write_variant(name, changes, parameters(model))
    expected = np.array(model(mx.array([IDS]))[0])

    assert bool(layers) == (name == "lfm2_moe")
    assert logit_distance(logits(path, IDS), expected) < LOGIT_TOLERANCE
