"""Mistakes that are easily made with this model: the goldens see each of them.

Each test builds the model with one thing wrong, loads the trained weights into it, and finds
its logits further from the reference's than rounding explains.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

import neve
from neve.contract.forward import RopeSpec, Scoring
from neve.layers.norms import RMSNorm, ZeroCentredRMSNorm
from neve.model import Model
from neve.testing.golden import Goldens, read_goldens
from neve.testing.parity import LOGIT_TOLERANCE, logit_distance
from neve_muse_glimmer.model import Trunk

pytestmark = pytest.mark.mlx

PROMPTS = ("recall_mid", "chat_multi")  # longer than the window
NORMS = ("input", "post_attention", "pre_feedforward", "post_feedforward")

Mistake: TypeAlias = Callable[[Any], None]


@pytest.fixture(scope="module")
def goldens(checkpoint: Path) -> Goldens:
    found = read_goldens(checkpoint)
    assert found is not None
    return found


@pytest.fixture
def distance(goldens: Goldens) -> Callable[[Path], float]:
    """Measure how far a checkpoint's logits are from the reference's."""

    def measure(path: Path) -> float:
        with neve.load(path, dtype="float32", use_block_paged_cache=False) as model:
            return max(_distance(model, goldens, prompt) for prompt in PROMPTS)

    return measure


def _distance(model: Model, goldens: Goldens, prompt: str) -> float:
    expected = goldens.logits[prompt]
    logits = np.array(model.logits(goldens.prompt(prompt).ids))[expected.positions]
    return logit_distance(logits, expected.logits)


@pytest.fixture
def mistaken(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mistake], None]:
    """Make every model that is loaded afterwards with a mistake."""
    module = importlib.import_module("neve_muse_glimmer.weights")
    own_weights = module.own_weights

    def arrange(mistake: Mistake) -> None:
        class Mistaken:
            def __init__(self, *args: Any) -> None:
                self._weights = own_weights(*args)

            def load_into(self, model: Any) -> None:
                self._weights.load_into(model)
                mistake(model)

        monkeypatch.setattr(module, "own_weights", Mistaken)

    return arrange


def trunk(model: Any) -> Any:
    return model.model.language_model


def norm_of(kind: Callable[..., Any], weight: mx.array) -> Any:
    norm = kind(weight.size, eps=1e-5)
    norm.weight = weight
    return norm


def block_norms_are_not_centred(model: Any) -> None:
    for block in trunk(model).layers:
        for name in NORMS:
            weight = block[f"{name}_layernorm"].weight
            block[f"{name}_layernorm"] = norm_of(RMSNorm, weight)


def last_norm_is_centred(model: Any) -> None:
    trunk(model).norm = norm_of(ZeroCentredRMSNorm, trunk(model).norm.weight)


def embeddings_are_not_normed(model: Any) -> None:
    class Plain(Trunk):
        def embed(self, ids: mx.array) -> mx.array:
            return self.embed_tokens(ids)

    trunk(model).__class__ = Plain


def full_layers_rotate(model: Any) -> None:
    for block in trunk(model).layers:
        block.self_attn.rope = RopeSpec(64, 5e5)


def nothing_rotates(model: Any) -> None:
    for block in trunk(model).layers:
        block.self_attn.rope = None


def pairs_are_interleaved(model: Any) -> None:
    for block in trunk(model).layers:
        if block.self_attn.rope is not None:
            block.self_attn.rope = RopeSpec(64, 5e5, interleaved=True)


def queries_have_no_factor(model: Any) -> None:
    for block in trunk(model).layers:
        block.self_attn.scoring = Scoring(64**-0.5)


def the_factor_replaces_the_scale(model: Any) -> None:
    for block in trunk(model).layers:
        block.self_attn.scoring = Scoring(3.87)


def gates_stand_open(model: Any) -> None:
    class Open(nn.Linear):
        def __call__(self, x: mx.array) -> mx.array:
            return mx.full((x.shape[0], 256), 100.0)

    for block in trunk(model).layers:
        block.self_attn.gate_proj = Open(1, 1)


def logits_have_no_multiplier(model: Any) -> None:
    model._multiplier = 1.0


def logits_have_no_cap(model: Any) -> None:
    model._softcap = 1e4


MISTAKES = (
    block_norms_are_not_centred,
    last_norm_is_centred,
    embeddings_are_not_normed,
    full_layers_rotate,
    nothing_rotates,
    pairs_are_interleaved,
    queries_have_no_factor,
    the_factor_replaces_the_scale,
    gates_stand_open,
    logits_have_no_multiplier,
    logits_have_no_cap,
)


def test_without_a_mistake(checkpoint, distance, mistaken):
    """FA-8: the arrangement of these tests leaves a sound model as it is."""
    mistaken(lambda model: None)

    assert distance(checkpoint) < LOGIT_TOLERANCE / 4


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_mistakes_are_seen(checkpoint, distance, mistaken, mistake: Mistake):
    """FA-8: what is wrong in one place moves the logits far beyond rounding."""
    mistaken(mistake)

    assert distance(checkpoint) > 50 * LOGIT_TOLERANCE


@pytest.mark.parametrize("window", [63, 65])
def test_a_window_is_not_off_by_one(raw_config, tensors, write_variant, distance, window: int):
    """FA-8: a window counts the token itself and no position more."""
    text = raw_config["text_config"] | {"sliding_window": window}

    assert (
        distance(write_variant(raw_config | {"text_config": text}, tensors)) > LOGIT_TOLERANCE
    )


@pytest.mark.parametrize("changes", [{"post_norm_eps": 1e-5}, {"rms_norm_eps": 1e-8}])
def test_each_norm_has_its_own_epsilon(raw_config, tensors, write_variant, distance, changes):
    """FA-8: norms behind attention and MLP have another epsilon than those before."""
    text = raw_config["text_config"] | changes
    path = write_variant(raw_config | {"text_config": text}, tensors)

    assert distance(path) > LOGIT_TOLERANCE
