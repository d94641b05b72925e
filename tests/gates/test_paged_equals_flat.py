"""Gate: the block-paged cache changes nothing but the time that a turn takes."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.mlx

TURNS = ("Please remember this. The code of Max is 7319.", "What is the code of Max?")


def test_two_turns_of_a_chat(load):
    """TG-2, KV-10: paged and flat write the same two turns; only the paged one hits."""
    answers = []
    for paged in (True, False):
        model = load(use_block_paged_cache=paged)
        chat = model.chat("You are a helpful assistant.", max_tokens=48)
        answers.append([chat.send(turn) for turn in TURNS])
    paged, flat = answers

    assert [a.text for a in paged] == [a.text for a in flat]
    assert [a.tokens for a in paged] == [a.tokens for a in flat]
    assert all(a.text for a in paged)
    assert paged[1].usage.cached_tokens > 0 == flat[1].usage.cached_tokens
