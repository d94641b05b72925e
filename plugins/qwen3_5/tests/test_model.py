"""Qwen3.5's model: mlx-lm's implementation as a reference, and its recurrence."""

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
from neve.layers.stream import Stream
from neve.testing.golden import read_goldens
from neve.testing.parity import LOGIT_TOLERANCE, logit_distance

pytestmark = pytest.mark.mlx

IDS = [374, 5, 1031, 88, 4, 2047, 12, 12, 900, 3, 77, 1500] * 10


def load(path: Path, **settings: Any) -> neve.Model:
    defaults: dict[str, Any] = {"dtype": "float32", "paged_cache_memory_mb": 8}
    return neve.load(path, **(defaults | settings))


def logits(path: Path, ids: list[int] = IDS) -> np.ndarray:
    with load(path) as model:
        return np.array(model.logits(ids))


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> np.ndarray:
    """The trained checkpoint's logits."""
    return logits(checkpoint)


def arrays(model: Any) -> dict[str, mx.array]:
    parameters: Any = tree_flatten(model.parameters())
    return dict(parameters)


# -- against mlx-lm ------------------------------------------------------------------------


def test_logits_equal_mlx_lms(checkpoint, converted):
    """FA-2: an independent implementation computes the same logits from the same weights."""
    goldens = read_goldens(checkpoint)
    assert goldens is not None
    ids = list(goldens.prompt("chat_multi").ids)
    expected = np.array(converted(mx.array([ids]))[0])

    assert logit_distance(logits(checkpoint, ids), expected) < LOGIT_TOLERANCE


@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
def test_mlx_quantised_checkpoint_equals_mlx_lms(converted, raw_config, write_variant, mode):
    """FA-2: as `mlx_lm.convert -q` writes it, routers with more bits than the rest."""
    how = {"group_size": 32, "bits": 4, "mode": mode}
    finer = {"group_size": 32, "bits": 8, "mode": "affine"}
    layers: dict[str, Any] = {}

    def predicate(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if not hasattr(module, "to_quantized"):
            return False
        if path.endswith(("mlp.gate", "shared_expert_gate")):
            layers[path] = finer
            return finer
        return True

    nn.quantize(converted, 32, 4, mode=mode, class_predicate=predicate)
    quantised = arrays(converted)
    path = write_variant(raw_config | {"quantization": how | layers}, quantised)
    expected = np.array(converted(mx.array([IDS]))[0])

    assert sum(name.endswith(".scales") for name in quantised) > 50
    assert logit_distance(logits(path), expected) < LOGIT_TOLERANCE


@pytest.mark.parametrize(
    "changes",
    [
        {"linear_num_key_heads": 1, "linear_num_value_heads": 6, "linear_value_head_dim": 16},
        {"linear_conv_kernel_dim": 2, "attention_bias": True, "rms_norm_eps": 1e-2},
        {"head_dim": 48, "num_key_value_heads": 1, "full_attention_interval": 2},
        {
            "rope_parameters": {
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
                "type": "default",
            }
        },
    ],
    ids=["heads", "kernel", "attention", "rope"],
)
def test_variants_equal_mlx_lms(changes, raw_config, write_variant, reference):
    """FA-2: config variants, on random weights, against an independent implementation."""
    text = raw_config["text_config"] | {"num_hidden_layers": 4, "layer_types": None} | changes
    config = raw_config | {"text_config": text}
    model = reference(config)
    path = write_variant(config, arrays(model))
    expected = np.array(model(mx.array([IDS]))[0])

    assert logit_distance(logits(path), expected) < LOGIT_TOLERANCE


# -- the recurrence ------------------------------------------------------------------------


@pytest.mark.parametrize("prefill_chunk_size", [1, 65])
def test_any_prefill_cut_gives_the_same(checkpoint, expected, prefill_chunk_size):
    """SC-1: the state carries over from slice to slice, whatever their lengths."""
    ids = IDS[:100]
    with load(checkpoint, prefill_chunk_size=prefill_chunk_size) as model:
        (first,) = model.generate(ids, max_tokens=1, logprobs=5).logprobs
    at_end = expected[len(ids) - 1].astype(np.float64)
    log_z = np.log(np.exp(at_end - at_end.max()).sum()) + at_end.max()

    for token, logprob in first.top:
        assert abs(logprob - (at_end[token] - log_z)) < 1e-4


def test_flat_equals_paged_over_two_turns(checkpoint):
    """KV-10, GR-5: a second turn goes on from a kept state, or computes all, and says one."""
    with load(checkpoint) as paged, load(checkpoint, use_block_paged_cache=False) as flat:
        first, computed = (model.generate(IDS[:70], max_tokens=12) for model in (paged, flat))
        longer = [*IDS[:70], *first.tokens, *IDS[:9]]
        second, whole = (model.generate(longer, max_tokens=12) for model in (paged, flat))

    assert first.tokens == computed.tokens
    assert second.tokens == whole.tokens
    assert (second.usage.cached_tokens, whole.usage.cached_tokens) == (80, 0)


def test_nothing_widens_the_residual_stream(checkpoint, monkeypatch):
    """FA-2: what is float32 inside, decays, norms and routers, comes back in bfloat16."""
    seen: list[mx.Dtype] = []
    block = importlib.import_module("neve_qwen3_5.model").Block
    call = block.__call__

    def spy(self: Any, stream: Stream, context: Any) -> Stream:
        after = call(self, stream, context)
        for passed in (stream, after):
            seen.extend(x.dtype for x in (passed.x, passed.delta) if x is not None)
        return after

    monkeypatch.setattr(block, "__call__", spy)
    with load(checkpoint, dtype="bfloat16") as model:
        answer = model.generate(IDS, max_tokens=2)

    assert len(answer.tokens) > 0
    assert set(seen) == {mx.bfloat16}
