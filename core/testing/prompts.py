"""Prompts for families whose checkpoints may lack goldens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .subject import Subject

if TYPE_CHECKING:
    from ..model import Model

NUM_PROMPTS = 8
LENGTHS = (1, 5, 16, 17, 40, 64, 130, 300)
"""Lengths in tokens below, at and beyond the ends of blocks."""

TEXT = """\
A river does not hurry, and yet it is never late. In the morning the miller opens the gate,
and by noon the wheel has ground what the village will eat: 3 sacks of wheat, 2 of rye and
one of oats. "Who counts them?" asked the girl. "The cat does," said the miller, "and she
has not been wrong since 1897." Then they both laughed, and the wheel went on turning.
"""


def mixed_prompts(subject: Subject, model: Model) -> list[list[int]]:
    """Return eight prompts of mixed lengths, shortest first.

    Golden prompts if the checkpoint has goldens, otherwise pieces of a text.
    """
    if subject.goldens is None:
        return _pieces(model)
    prompts = sorted((list(prompt.ids) for prompt in subject.goldens.prompts), key=len)
    last = len(prompts) - 1
    chosen = sorted({round(i * last / (NUM_PROMPTS - 1)) for i in range(NUM_PROMPTS)})
    return [prompts[index] for index in chosen]


def _pieces(model: Model) -> list[list[int]]:
    ids = model.encode(TEXT)
    while len(ids) < sum(LENGTHS):
        ids += ids
    starts = [sum(LENGTHS[:i]) for i in range(len(LENGTHS))]
    return [ids[start : start + num] for start, num in zip(starts, LENGTHS, strict=True)]
