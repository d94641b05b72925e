"""Builds the tokenizer and the training windows.

Writes OUT/tokenizer/ and OUT/windows.npz, which holds uint16 token ids: `w1024`
`[windows, 1024]`, `w2048` `[windows, 2048]`, and `held_out` `[96, 1024]`.
"""

import argparse
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer

from .books import read_books
from .textgen import document, long_document
from .tokenizer import END_OF_TEXT, train_tokenizer

Ids = np.ndarray  # uint16 [length]; a document ends in END_OF_TEXT
Write = Callable[[Random], str]

DOCUMENT_TOKENS = 210  # on average
BOOK_PIECE_TOKENS = 700
HELD_OUT_BOOK_PIECES = 40
SEED_CHUNK = 2000  # this many documents are drawn from one seed


def generate(write: Write, count: int, seed: int) -> Iterator[str]:
    """Draw `count` documents."""
    for chunk in range(0, count, SEED_CHUNK):
        rng = Random(seed * 1000003 + chunk // SEED_CHUNK)
        for _ in range(min(SEED_CHUNK, count - chunk)):
            yield write(rng)


def long(min_words: int, max_words: int) -> Write:
    """Return a writer of long documents."""
    return partial(long_document, min_words=min_words, max_words=max_words)


def short_texts(num_windows: int) -> Iterator[str]:
    """Draw what fills `num_windows` windows of 1024 tokens."""
    tokens = num_windows * 1024
    yield from generate(document, int(tokens / DOCUMENT_TOKENS * 0.8), seed=1)
    yield from generate(long(200, 640), int(tokens * 0.16 / 650), seed=2)


def long_texts(num_windows: int) -> Iterator[str]:
    """Draw what fills `num_windows` windows of 2048 tokens."""
    tokens = num_windows * 2048
    yield from generate(long(500, 1250), int(tokens * 0.75 / 1300), seed=3)
    yield from generate(document, int(tokens * 0.25 / DOCUMENT_TOKENS), seed=4)


def held_out_texts() -> Iterator[str]:
    """Draw what the loss is measured on."""
    yield from generate(document, 900, seed=5)
    yield from generate(long(200, 640), 60, seed=6)


def encode(tokenizer: Tokenizer, texts: Iterable[str]) -> list[Ids]:
    """Encode documents, each closed by END_OF_TEXT."""
    encodings = tokenizer.encode_batch(list(texts))
    return [np.array([*encoding.ids, END_OF_TEXT], np.uint16) for encoding in encodings]


def pack(
    documents: Sequence[Ids], pieces: Sequence[Ids], num_windows: int, length: int, rng: Random
) -> np.ndarray:
    """Lay documents end to end into windows, without cutting any.

    What is left of a window before a document that does not fit is filled with `pieces`, which
    are cut. Documents longer than a window are left out, and so is the last, unfinished window.

    Returns:
        uint16 `[at most num_windows, length]`.
    """
    endless = itertools.cycle(pieces)
    windows: list[Ids] = []
    parts: list[Ids] = []
    room = length
    for ids in documents:
        if len(ids) > length:
            continue
        if len(ids) > room:
            windows.append(np.concatenate([*parts, *_fill(endless, room, rng)]))
            parts, room = [], length
        parts.append(ids)
        room -= len(ids)
        if room == 0:
            windows.append(np.concatenate(parts))
            parts, room = [], length
        if len(windows) == num_windows:
            break
    return np.array(windows)


def _fill(pieces: Iterator[Ids], room: int, rng: Random) -> Iterator[Ids]:
    while room:
        piece = next(pieces)
        if len(piece) > room:
            start = rng.randint(0, len(piece) - room)
            piece = piece[start : start + room]
        yield piece
        room -= len(piece)


def build_windows(
    tokenizer: Tokenizer, books: Sequence[str], num_short: int, num_long: int
) -> dict[str, np.ndarray]:
    """Mix generated texts with two thirds of the books; the rest of the books fills gaps."""
    rng = Random(1)
    short = encode(tokenizer, short_texts(num_short))
    longer = encode(tokenizer, long_texts(num_long))
    book_ids = encode(tokenizer, books)
    for documents in (short, longer, book_ids):
        rng.shuffle(documents)
    pieces = _cut(book_ids[HELD_OUT_BOOK_PIECES:])
    rng.shuffle(pieces)
    mixed_in = len(pieces) * 2 // 3
    short += pieces[:mixed_in]
    rng.shuffle(short)
    held_out = encode(tokenizer, held_out_texts())
    return {
        "w1024": pack(short, pieces[mixed_in:], num_short, 1024, rng),
        "w2048": pack(longer, pieces[mixed_in:], num_long, 2048, rng),
        "held_out": pack(held_out, book_ids[:HELD_OUT_BOOK_PIECES], 96, 1024, rng),
    }


def _cut(documents: Sequence[Ids]) -> list[Ids]:
    size = BOOK_PIECE_TOKENS
    return [
        ids[start : start + size] for ids in documents for start in range(0, len(ids), size)
    ]


def main() -> None:
    """Build the tokenizer and the training windows."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--books", type=Path, required=True, help="the unpacked packages")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--short", type=int, default=14000, help="windows of 1024 tokens")
    parser.add_argument("--long", type=int, default=2600, help="windows of 2048 tokens")
    arguments = parser.parse_args()
    books = read_books(arguments.books)
    texts = [*generate(document, 12000, seed=7), *books[::4]]
    tokenizer = train_tokenizer(texts, arguments.out / "tokenizer")
    windows = build_windows(tokenizer, books, arguments.short, arguments.long)
    np.savez_compressed(arguments.out / "windows.npz", **windows)
    for name, ids in windows.items():
        print(name, *ids.shape)


if __name__ == "__main__":
    main()
