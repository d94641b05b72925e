"""The demo's acts, on the tiny checkpoint."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from neve.cli.demo.acts import batch_act, prefix_act, stream_act
from neve.cli.demo.text import BATCH, SYSTEM_PROMPT

pytestmark = pytest.mark.mlx


@pytest.fixture
def out():
    return Console(file=io.StringIO(), width=100, markup=False, emoji=False)


def test_first_act_streams_an_answer(model, out):
    """UX-2: the answer and its figures are shown."""
    completion = stream_act(model, out)
    shown = out.file.getvalue()

    assert completion.text in shown
    assert "first token after" in shown


def test_second_act_finds_the_system_prompt(model, out):
    """UX-2, KV-2: all blocks of the shared system prompt come from the cache."""
    figures = prefix_act(model, out)
    usage = figures.second.usage

    assert figures.first.usage.cached_tokens < 32
    assert len(model.encode(SYSTEM_PROMPT)) - 32 < usage.cached_tokens < usage.prompt_tokens
    assert f"found {usage.cached_tokens} of its {usage.prompt_tokens}" in out.file.getvalue()


def test_third_act_compares_like_with_like(model, out):
    """UX-2: both sides start cold, and every answer is the same on both."""
    before = model.stats().pools.prefix_hit_tokens
    figures = batch_act(model, out)
    shown = out.file.getvalue()

    assert model.stats().pools.prefix_hit_tokens == before
    assert figures.equal_answers == len(BATCH)
    assert min(figures.alone_tokens_per_s, figures.together_tokens_per_s) > 0
    assert all(question in shown for question in BATCH)


def test_system_prompt_is_long_and_no_terminal_is_needed(model, out):
    """UX-2: about a thousand tokens for a large vocabulary, more for a tiny one."""
    assert 700 < len(SYSTEM_PROMPT.split()) < 900
    assert len(model.encode(SYSTEM_PROMPT)) > 1000
