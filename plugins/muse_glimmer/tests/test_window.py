"""Windows: whatever way a prompt is cut, mixed or run, the answer is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
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

LENGTHS = (1, 16, 58, 63, 64, 65, 79, 80, 128, 131, 138, 300)
"""Prompts that end in every place relative to a block and to the window, or whose answers
grow out of it."""


def load(path: Path, **settings: Any) -> Model:
    defaults: dict[str, Any] = {"dtype": "float32", "paged_cache_memory_mb": 64}
    return neve.load(path, **(defaults | settings))


@pytest.fixture(scope="module")
def prompts(checkpoint: Path) -> list[list[int]]:
    goldens = read_goldens(checkpoint)
    assert goldens is not None
    ids = list(goldens.prompt("recall_long").ids)
    return [ids[:length] for length in LENGTHS]


@pytest.fixture(scope="module", params=["flat", "paged"])
def lane(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(lane: str, checkpoint: Path) -> Iterator[Model]:
    with load(checkpoint, use_block_paged_cache=lane == "paged") as model:
        yield model


@pytest.fixture(scope="module")
def alone(checkpoint: Path, prompts: list[list[int]]) -> list[Any]:
    """Their answers on contiguous caches, each alone and in one piece."""
    with load(checkpoint, use_block_paged_cache=False) as model:
        return one_by_one(model, prompts, **OPTIONS)


def logprobs(answers: list[Any]) -> np.ndarray:
    return np.array([[step.logprob for step in a.logprobs] for a in answers])


def test_decoding_equals_prefilling(model, prompts, alone):
    """TG-2: each token's logits are those of the whole text computed at once."""
    for prompt, answer in zip(prompts, alone, strict=True):
        whole = np.array(model.logits([*prompt, *answer.tokens]), np.float64)
        rows = whole[len(prompt) - 1 : -1]
        log_z = np.log(np.exp(rows).sum(axis=-1))  # the softcap keeps this finite
        expected = rows[np.arange(len(rows)), answer.tokens] - log_z

        np.testing.assert_allclose(logprobs([answer])[0], expected, atol=TOLERANCE)


def test_lanes_answer_alike(model, prompts, alone):
    """TG-2: contiguous or in pages, a window holds the same."""
    answers = one_by_one(model, prompts, **OPTIONS)

    assert tokens(answers) == tokens(alone)
    np.testing.assert_allclose(logprobs(answers), logprobs(alone), atol=TOLERANCE)


def test_ragged_rows_equal_their_single_runs(model, prompts, alone):
    """TG-3: rows inside and outside their first window, computed together, equal their own."""
    together = at_once(model, prompts, cache_salt="together", **OPTIONS)

    assert tokens(together) == tokens(alone)
    np.testing.assert_allclose(logprobs(together), logprobs(alone), atol=TOLERANCE)


@pytest.mark.parametrize("prefill_chunk_size", [1, 7, 64, 69])
def test_chunks(lane, checkpoint, prompts, alone, prefill_chunk_size):
    """SC-1: a prompt cut anywhere, also within a window, is answered as in one piece."""
    num = sum(length <= 2 * max(prefill_chunk_size, 66) for length in LENGTHS)
    settings: dict[str, Any] = {"use_block_paged_cache": lane == "paged"}
    with load(checkpoint, prefill_chunk_size=prefill_chunk_size, **settings) as model:
        sliced = one_by_one(model, prompts[:num], **OPTIONS)

    assert tokens(sliced) == tokens(alone[:num])
    np.testing.assert_allclose(logprobs(sliced), logprobs(alone[:num]), atol=TOLERANCE)
