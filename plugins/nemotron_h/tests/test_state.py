"""Mamba-2's state: whatever way a prompt is cut, mixed or run, the answer is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import neve
import neve_nemotron_h.plugin as hooks
from neve.catalogue import load_family
from neve.checkpoint.checkpoint import open_checkpoint
from neve.forward.flat_context import FlatContext
from neve.forward.step_batch import RowInput, build_step_batch
from neve.model import Model
from neve.pools.flat_cache import FlatCache
from neve.testing.golden import read_goldens
from neve.testing.parity import at_once, logit_distance, one_by_one, tokens

FAMILY = load_family("nemotron_h", hooks)

pytestmark = pytest.mark.mlx

TOLERANCE = 1e-4
"""On log-probabilities in float32, whose range is about 40."""

OPTIONS: dict[str, Any] = {"max_tokens": 4, "logprobs": 2, "ignore_eos": True}


@pytest.fixture(scope="module")
def prompts(checkpoint) -> list[list[int]]:
    """Prompts that end in every place relative to a kernel, a block and a chunk."""
    goldens = read_goldens(checkpoint)
    assert goldens is not None
    ids = list(goldens.prompt("recall_long").ids) * 2
    return [ids[:length] for length in (1, 2, 3, 16, 17, 64, 65, 131, 1030)]


@pytest.fixture(scope="module")
def model(checkpoint) -> Iterator[Model]:
    with neve.load(checkpoint, dtype="float32", paged_cache_memory_mb=16) as model:
        yield model


@pytest.fixture(scope="module")
def alone(model, prompts) -> list[Any]:
    return one_by_one(model, prompts, **OPTIONS)


def logprobs(answers: list[Any]) -> np.ndarray:
    return np.array([[step.logprob for step in a.logprobs] for a in answers])


def test_flat_equals_paged(checkpoint, prompts, alone):
    """TG-2: both caches give the same answers, also to a second turn."""
    with neve.load(checkpoint, dtype="float32", use_block_paged_cache=False) as flat:
        first = one_by_one(flat, prompts, **OPTIONS)

    assert tokens(first) == tokens(alone)
    np.testing.assert_allclose(logprobs(first), logprobs(alone), atol=TOLERANCE)


def test_a_second_turn_is_as_good_as_cold(model, prompts, alone):
    """GR-5: it goes on from the state that was kept at the last whole block of the first."""
    second = [*prompts[-1], *alone[-1].tokens, *prompts[3]]
    again, fresh = (model.generate(second, cache_salt=salt, **OPTIONS) for salt in (None, "x"))

    assert (again.usage.cached_tokens, fresh.usage.cached_tokens) == (1024, 0)
    assert again.tokens == fresh.tokens
    np.testing.assert_allclose(logprobs([again]), logprobs([fresh]), atol=TOLERANCE)


def test_ragged_rows_equal_their_single_runs(model, prompts, alone):
    """TG-3: rows of different lengths, prefilled and decoded together, equal their own runs."""
    together = at_once(model, prompts, cache_salt="together", **OPTIONS)

    assert model.stats().scheduler.max_batch_occupancy > 1
    assert tokens(together) == tokens(alone)
    np.testing.assert_allclose(logprobs(together), logprobs(alone), atol=TOLERANCE)


@pytest.mark.parametrize("prefill_chunk_size", [65, 1000])
def test_chunks(checkpoint, prompts, alone, prefill_chunk_size):
    """SC-1: prefill chunks are rounded to the model's, and change no answer."""
    with neve.load(
        checkpoint,
        dtype="float32",
        paged_cache_memory_mb=16,
        prefill_chunk_size=prefill_chunk_size,
    ) as model:
        sliced = one_by_one(model, prompts, **OPTIONS)

    assert tokens(sliced) == tokens(alone)
    np.testing.assert_allclose(logprobs(sliced), logprobs(alone), atol=TOLERANCE)


class FlatRun:
    """One sequence on a flat cache, advanced by as many tokens as one likes."""

    def __init__(self, path: Any) -> None:
        opened = open_checkpoint(path, dtype=mx.float32)
        config = hooks.parse_config(opened.config)
        self._model = hooks.build_model(config, opened.weights)
        self._layout = hooks.declare_cache_groups(config)

    def logits(self, ids: Sequence[int], cut: int) -> np.ndarray:
        """Return the logits of the last token of each slice of `cut` tokens."""
        cache, results = FlatCache(), []
        for start in range(0, len(ids), cut):
            batch = build_step_batch([RowInput(start, ids[start : start + cut])], None)
            context = FlatContext(self._layout, [cache], batch)
            results.append(FAMILY.forward(self._model, batch, context).logits)
            mx.eval(results[-1], cache.arrays())
        return np.array(mx.concatenate(results))


@pytest.mark.parametrize("cut", [1, 7, 64, 65, 1000])
def test_cuts(checkpoint, model, prompts, cut):
    """SC-1: cuts anywhere, in a kernel's length or in a chunk, give the logits of the whole."""
    ids = prompts[-1][: max(2 * cut, 100)]
    ends = [min(start + cut, len(ids)) - 1 for start in range(0, len(ids), cut)]

    sliced = FlatRun(checkpoint).logits(ids, cut)
    assert logit_distance(sliced, np.array(model.logits(ids))[ends]) < 2e-6
