"""Gemma 4's model: its goldens on the flat path, cuts, what is spared, and dtypes."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import neve
from neve.testing.golden import Goldens, read_goldens
from neve.testing.parity import LOGIT_TOLERANCE, differs_at, logit_distance

pytestmark = pytest.mark.mlx

TOLERANCE = 1e-4
"""On log-probabilities in float32, whose range is about 40."""


def flat(path: Path, **settings: Any) -> neve.Model:
    defaults: dict[str, Any] = {"dtype": "float32", "use_block_paged_cache": False}
    return neve.load(path, **(defaults | settings))


@pytest.fixture(scope="module")
def goldens(name, checkpoint) -> Goldens:
    found = read_goldens(checkpoint(name))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def ids(goldens) -> list[int]:
    """A prompt of several windows."""
    return list(goldens.prompt("recall_mid").ids)


def test_goldens_on_the_flat_path(name, checkpoint, goldens):
    """FA-4: logits and greedy tokens are the reference's also from contiguous caches."""
    with flat(checkpoint(name)) as model:
        for prompt_id, golden in goldens.logits.items():
            prompt = goldens.prompt(prompt_id)
            found = np.array(model.logits(prompt.ids))[golden.positions]
            answer = model.generate(prompt.ids, max_tokens=prompt.max_new)

            assert logit_distance(found, golden.logits) < LOGIT_TOLERANCE, prompt_id
            assert differs_at(answer.tokens, prompt.f32) is None, prompt_id


@pytest.mark.parametrize("prefill_chunk_size", [1, 7, 64, 69])
def test_chunks(name, checkpoint, ids, prefill_chunk_size):
    """SC-1: a prompt cut anywhere, also within a window, is answered as in one piece."""
    options: dict[str, Any] = {"max_tokens": 6, "logprobs": 3, "ignore_eos": True}
    chosen = ids[: max(75, 2 * prefill_chunk_size)]
    with (
        flat(checkpoint(name)) as whole,
        flat(checkpoint(name), prefill_chunk_size=prefill_chunk_size) as cut,
    ):
        one, other = (model.generate(chosen, **options) for model in (whole, cut))

    logprobs = [[step.logprob for step in answer.logprobs] for answer in (one, other)]

    assert one.tokens == other.tokens
    np.testing.assert_allclose(logprobs[0], logprobs[1], atol=TOLERANCE)


def test_tokens_without_logits_are_spared_and_change_nothing(name, checkpoint, ids):
    """FA-4: layers that keep nothing compute the tokens whose logits are wanted, alike."""
    with flat(checkpoint(name)) as model:
        (first,) = model.generate(ids, max_tokens=1, logprobs=5).logprobs
        at_end = np.array(model.logits(ids))[-1].astype(np.float64)
    log_z = np.log(np.exp(at_end - at_end.max()).sum()) + at_end.max()

    for token, logprob in first.top:
        assert abs(logprob - (at_end[token] - log_z)) < TOLERANCE


def test_shared_layers_see_few_tokens_of_a_prefill(checkpoint, monkeypatch):
    """PK-2: of a prompt's slices they compute the last token, and nothing before the last."""
    seen: list[tuple[int, int]] = []
    block = importlib.import_module("neve_gemma4.model").Block
    call = block.__call__

    def spy(self: Any, x: mx.array, own_input: mx.array | None, context: Any) -> mx.array:
        seen.append((self.self_attn.layer, x.shape[0]))
        return call(self, x, own_input, context)

    monkeypatch.setattr(block, "__call__", spy)
    with flat(checkpoint("gemma4"), prefill_chunk_size=64) as model:
        seen.clear()
        model.generate(list(range(10, 110)), max_tokens=1)
    slices = [*((i, 64) for i in range(6)), *((i, 36) for i in range(6))]

    assert seen == [*slices, *((i, 1) for i in range(6, 10))]


def test_nothing_widens_the_residual_stream(name, checkpoint, ids, monkeypatch):
    """FA-4: what is float32 inside comes back in bfloat16; only logits stay float32."""
    seen: list[mx.Dtype] = []
    block = importlib.import_module("neve_gemma4.model").Block
    call = block.__call__

    def spy(self: Any, x: mx.array, own_input: mx.array | None, context: Any) -> mx.array:
        out = call(self, x, own_input, context)
        seen.extend((x.dtype, out.dtype))
        return out

    monkeypatch.setattr(block, "__call__", spy)
    with flat(checkpoint(name), dtype="bfloat16") as model:
        answer = model.generate(ids[:20], max_tokens=2)
        logits = model.logits(ids[:20])

    assert len(answer.tokens) > 0
    assert set(seen) == {mx.bfloat16}
    assert logits.dtype == mx.float32
    assert float(mx.abs(logits).max()) <= 30.0
