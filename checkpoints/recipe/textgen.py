"""Draws training documents."""

from collections.abc import Callable
from random import Random

from .chats import chat
from .drills import copying, counting
from .filler import filler
from .recall import lookup_table, recall
from .stories import story

# kind -> (how it is drawn, its share of the documents)
KINDS: dict[str, tuple[Callable[[Random], str], float]] = {
    "story": (story, 0.24),
    "recall": (recall, 0.24),
    "table": (lookup_table, 0.05),
    "copy": (copying, 0.08),
    "count": (counting, 0.05),
    "chat": (chat, 0.34),
}


def document(rng: Random) -> str:
    """Draw a document of any kind, some 200 tokens on average."""
    writers, shares = zip(*KINDS.values(), strict=True)
    return rng.choices(writers, shares)[0](rng)


def long_document(rng: Random, min_words: int, max_words: int) -> str:
    """Draw a document whose filler has at least a random number of words in these bounds."""
    num_words, kind = rng.randint(min_words, max_words), rng.random()
    if kind < 0.55:
        return recall(rng, num_words)
    if kind < 0.85:
        return chat(rng, num_words)
    text = filler(rng, num_words // 2)
    return f"First time: {text}\n\nSecond time: {text}"
