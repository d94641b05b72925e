"""neve in a minute: load, generate, chat, and see the cache at work."""

from __future__ import annotations

from pathlib import Path

import pytest

import neve

pytestmark = pytest.mark.mlx

# A trained model of 3 million parameters that knows one thing well: to look codes up.
CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "qwen3"


@pytest.fixture(scope="module")
def model():
    with neve.load(CHECKPOINT, paged_cache_memory_mb=32) as model:
        yield model


def test_generate(model):
    """UX-1: a prompt in, a completion out."""
    done = model.generate("Once upon a time", max_tokens=20)

    assert done.text
    assert done.usage.completion_tokens == len(done.tokens) == 20


def test_second_request_hits_the_cache(model):
    """KV-2: what one request has computed, the next one finds, up to whole blocks."""
    prompt = model.encode("The river ran down to the sea. " * 8)
    first = model.generate(prompt, max_tokens=8)
    second = model.generate(prompt, max_tokens=8)
    block_size = model.info.settings.cache.paged_block_size

    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens == (len(prompt) - 1) // block_size * block_size
    assert second.tokens == first.tokens


def test_chat_remembers(model):
    """UX-1: a turn knows the turns before it, and computes only what is new."""
    chat = model.chat(max_tokens=40)
    chat.send("Please remember this. The code of Max is 7319.")
    done = chat.send("What is the code of Max?")

    assert "7319" in done.text
    assert done.usage.cached_tokens > 0


def test_stream(model):
    """UX-1: the pieces of a stream make up the completion."""
    pieces = [piece.text for piece in model.stream("Once upon a time", max_tokens=20)]

    assert "".join(pieces) == model.generate("Once upon a time", max_tokens=20).text
