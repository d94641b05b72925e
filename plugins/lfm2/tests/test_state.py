"""The convolutions' state: whatever way a prompt is cut, mixed or run, the answer is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import neve
from neve.model import Model
from neve.testing.golden import read_goldens
from neve.testing.parity import at_once, one_by_one, tokens

pytestmark = pytest.mark.mlx

TOLERANCE = 1e-4
"""On log-probabilities in float32, whose range is about 40."""

OPTIONS: dict[str, Any] = {"max_tokens": 6, "logprobs": 2, "ignore_eos": True}


@pytest.fixture(scope="module")
def prompts(name, checkpoint) -> list[list[int]]:
    """Prompts that end in every place relative to the kernel and to a block."""
    goldens = read_goldens(checkpoint(name))
    assert goldens is not None
    ids = list(goldens.prompt("recall_long").ids)
    return [ids[:length] for length in (1, 2, 3, 16, 17, 66, 131, 300)]


@pytest.fixture(scope="module")
def model(name, checkpoint) -> Iterator[Model]:
    with neve.load(checkpoint(name), dtype="float32", paged_cache_memory_mb=16) as model:
        yield model


@pytest.fixture(scope="module")
def alone(model, prompts) -> list[Any]:
    return one_by_one(model, prompts, **OPTIONS)


def logprobs(answers: list[Any]) -> np.ndarray:
    return np.array([[step.logprob for step in a.logprobs] for a in answers])


def test_flat_equals_paged(name, checkpoint, prompts, alone):
    """TG-2: both caches give the same answers, also to a second turn."""
    with neve.load(checkpoint(name), dtype="float32", use_block_paged_cache=False) as flat:
        first = one_by_one(flat, prompts, **OPTIONS)

    assert tokens(first) == tokens(alone)
    np.testing.assert_allclose(logprobs(first), logprobs(alone), atol=TOLERANCE)


def test_a_second_turn_is_as_good_as_cold(model, prompts, alone):
    """GR-5: it goes on from the state that was kept at the last whole block of the first."""
    second = [*prompts[-1], *alone[-1].tokens, *prompts[3]]
    again, fresh = (model.generate(second, cache_salt=salt, **OPTIONS) for salt in (None, "x"))

    assert (again.usage.cached_tokens, fresh.usage.cached_tokens) == (304, 0)
    assert again.tokens == fresh.tokens
    np.testing.assert_allclose(logprobs([again]), logprobs([fresh]), atol=TOLERANCE)


def test_ragged_rows_equal_their_single_runs(model, prompts, alone):
    """TG-3: rows of different lengths, prefilled and decoded together, equal their own runs."""
    together = at_once(model, prompts, cache_salt="together", **OPTIONS)

    assert model.stats().scheduler.max_batch_occupancy > 1
    assert tokens(together) == tokens(alone)
    np.testing.assert_allclose(logprobs(together), logprobs(alone), atol=TOLERANCE)


@pytest.mark.parametrize("prefill_chunk_size", [1, 65, 256])
def test_chunks(name, checkpoint, prompts, alone, prefill_chunk_size):
    """SC-1: a prompt cut anywhere, even within a kernel's length, is answered as in one."""
    longest = 2 * max(prefill_chunk_size, 70)
    chosen = [i for i, ids in enumerate(prompts) if 1 < len(ids) <= longest]
    with neve.load(
        checkpoint(name),
        dtype="float32",
        paged_cache_memory_mb=16,
        prefill_chunk_size=prefill_chunk_size,
    ) as model:
        sliced = one_by_one(model, [prompts[i] for i in chosen], **OPTIONS)
    whole = [alone[i] for i in chosen]

    assert tokens(sliced) == tokens(whole)
    np.testing.assert_allclose(logprobs(sliced), logprobs(whole), atol=TOLERANCE)
