"""Muse-Glimmer's model against mlx-lm's, also for what no checkpoint here has."""

from __future__ import annotations

import importlib
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

IDS = [374, 5, 1031, 88, 4, 2047, 12, 12, 900, 3, 77, 1500] * 12
FULL, SLIDING = "full_attention", "sliding_attention"
THETA = 5e5
SINGLE_HEAD = {"num_key_value_heads": 1, "num_attention_heads": 5, "head_dim": 48}
FACTORS = {
    "qk_scale_factor": 1.5,
    "output_multiplier": 0.2,
    "final_logit_softcapping": 3.0,
    "rms_norm_eps": 1e-2,
    "post_norm_eps": 1e-1,
}


def logits(path: Path, ids: list[int] = IDS) -> np.ndarray:
    with neve.load(path, dtype="float32", use_block_paged_cache=False) as model:
        return np.array(model.logits(ids))


def arrays(model: Any) -> dict[str, mx.array]:
    parameters: Any = tree_flatten(model.parameters())
    return dict(parameters)


def test_logits_equal_mlx_lms(checkpoint, converted):
    """FA-8: an independent implementation computes the same logits from the same weights."""
    goldens = read_goldens(checkpoint)
    assert goldens is not None
    for prompt in ("recall_mid", "chat_multi"):
        ids = list(goldens.prompt(prompt).ids)
        expected = np.array(converted(mx.array([ids]))[0])

        assert logit_distance(logits(checkpoint, ids), expected) < LOGIT_TOLERANCE


@pytest.mark.parametrize(
    "changes",
    [
        SINGLE_HEAD,
        FACTORS,
        {"sliding_window": 1},
        {"sliding_window": 4096, "hidden_size": 96, "num_attention_heads": 6},
        {"layer_types": [FULL, SLIDING] * 4, "layer_rope_theta": [0, THETA] * 4},
        {"layer_types": [SLIDING] * 8, "layer_rope_theta": [THETA] * 8},
        {"layer_types": [FULL] * 8, "layer_rope_theta": [0] * 8},
        {"layer_types": None, "layer_rope_theta": None, "rope_parameters": {"rope_theta": 1e4}},
        {"tie_word_embeddings": True},
    ],
    ids=["heads", "factors", "own", "wide", "mixed", "sliding", "full", "absent", "tied"],
)
def test_variants_equal_mlx_lms(changes, raw_config, write_variant, reference):
    """FA-8: config variants, on random weights, against an independent implementation."""
    text = raw_config["text_config"] | changes
    config = raw_config | {"text_config": text, "tie_word_embeddings": None}
    model = reference(config)
    weights = arrays(model)
    for name, tensor in weights.items():  # not random there
        if name.endswith("norm.weight"):
            weights[name] = mx.random.uniform(-0.5, 0.5, tensor.shape)
    model.load_weights(list(weights.items()))
    path = write_variant(config, weights)
    expected = np.array(model(mx.array([IDS]))[0])

    assert logit_distance(logits(path), expected) < LOGIT_TOLERANCE


@pytest.mark.parametrize("mode", ["affine", "mxfp4", "mxfp8", "nvfp4"])
def test_mlx_quantised_checkpoint_equals_mlx_lms(converted, raw_config, write_variant, mode):
    """FA-8: as MLX's tools write it, gates and head with more bits than the rest."""
    size = 16 if mode == "nvfp4" else 32
    bits = 8 if mode == "mxfp8" else 4
    how = {"group_size": size, "bits": bits, "mode": mode}
    finer = {"group_size": 32, "bits": 8, "mode": "affine"}
    layers: dict[str, Any] = {}

    def predicate(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if not hasattr(module, "to_quantized"):
            return False
        if path.endswith(("self_attn.gate_proj", "lm_head", "embed_tokens")):
            layers[path] = finer
            return finer
        return True

    nn.quantize(converted, size, bits, mode=mode, class_predicate=predicate)
    quantised = arrays(converted)
    path = write_variant(raw_config | {"quantization": how | layers}, quantised)
    expected = np.array(converted(mx.array([IDS]))[0])

    assert len(layers) == 10
    assert sum(name.endswith(".scales") for name in quantised) == 8 * 8 + 2
    assert logit_distance(logits(path), expected) < LOGIT_TOLERANCE


@pytest.mark.parametrize("bits", [2, 3, 5, 6, 8])
def test_bits_of_the_affine_mode(converted, raw_config, write_variant, bits: int):
    """FA-8: every width that MLX packs."""
    nn.quantize(converted, 64, bits)
    how = {"group_size": 64, "bits": bits}
    path = write_variant(raw_config | {"quantization": how}, arrays(converted))
    expected = np.array(converted(mx.array([IDS]))[0])

    assert logit_distance(logits(path), expected) < LOGIT_TOLERANCE


def test_nothing_widens_the_residual_stream(checkpoint, monkeypatch):
    """FA-8: norms are float32 inside and give bfloat16; logits alone are float32."""
    streams: list[mx.Dtype] = []
    outputs: list[mx.Dtype] = []
    module = importlib.import_module("neve_muse_glimmer.model")

    def spy(cls: Any, seen: list[mx.Dtype], result: bool) -> None:
        call = cls.__call__

        def spied(self: Any, x: Any, context: Any) -> Any:
            out = call(self, x, context)
            seen.append(out.logits.dtype if result else x.computed().dtype)
            return out

        monkeypatch.setattr(cls, "__call__", spied)

    spy(module.Block, streams, result=False)
    spy(module.MuseGlimmer, outputs, result=True)
    with neve.load(checkpoint, dtype="bfloat16", use_block_paged_cache=False) as model:
        answer = model.generate(IDS, max_tokens=2)

    assert len(answer.tokens) > 0
    assert (set(streams), set(outputs)) == ({mx.bfloat16}, {mx.float32})
