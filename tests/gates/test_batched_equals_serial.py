"""Gate: requests that share steps answer as each would alone."""

from __future__ import annotations

import pytest

from neve.testing.parity import at_once, one_by_one

pytestmark = pytest.mark.mlx

STORY = "Once upon a time there was a miller who lived by a river. "
TEXTS = (
    "Once upon a time",
    "The",
    STORY * 12,
    "1, 2, 3, 4,",
    "The code of Max is 7319. " + STORY * 4 + "The code of Max is",
    "In the beginning",
    STORY + "He had",
)
CHAT = [{"role": "user", "content": "What is the capital of France?"}]


def test_eight_concurrent_prompts(load):
    """TG-3: eight mixed prompts, text and chat, answer together as they do one by one."""
    model = load(max_num_seqs=8)
    prompts = [model.encode(prompt) for prompt in (*TEXTS, CHAT)]
    options = {"max_tokens": 32, "ignore_eos": True}
    serial = one_by_one(model, prompts, **options, cache_salt="serial")
    batched = at_once(model, prompts, **options, cache_salt="batched")

    assert [a.text for a in batched] == [a.text for a in serial]
    assert [a.tokens for a in batched] == [a.tokens for a in serial]
    assert model.stats().scheduler.max_batch_occupancy == 8
