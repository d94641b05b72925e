"""Text that puts distance between a fact and its question.

As in `stories`, every alternative is drawn before one is taken.
"""

from random import Random

from .choice import a, draw_person, favour, some
from .stories import story
from .words import (
    ANIMALS,
    COLORS,
    DAYS,
    FEELINGS,
    FOODS,
    JOBS,
    MATERIALS,
    OBJECTS,
    PLACES,
    RELATIVES,
    SIZES,
    WEATHER,
)


def sentence(rng: Random) -> str:
    """Say something that nothing else in the text depends on."""
    who = draw_person(rng)
    furniture = ["table", "chair", "shelf", "floor", "bed"]
    alternatives = [
        (
            f"The {favour(rng, COLORS)} {favour(rng, OBJECTS)} "
            f"was on the {favour(rng, furniture)}."
        ),
        (
            f"On {favour(rng, DAYS)}, {who} walked to the {favour(rng, PLACES)} "
            f"with {who.possessive} {favour(rng, ANIMALS)}."
        ),
        f"It was {favour(rng, WEATHER)}, so {who} stayed near the {favour(rng, PLACES)}.",
        f"{who} ate {some(favour(rng, FOODS))} and felt {favour(rng, FEELINGS)}.",
        (
            f"The {favour(rng, JOBS)} had {a(favour(rng, SIZES))} {favour(rng, OBJECTS)} "
            f"made of {favour(rng, MATERIALS)}."
        ),
        f"{who} wanted to be {a(favour(rng, JOBS))} when {who.subject} grew up.",
        f"A {favour(rng, COLORS)} bird sat on the roof and sang until the evening.",
        f"The road to the {favour(rng, PLACES)} was long, but nobody was in a hurry.",
        (
            f"In the {favour(rng, PLACES)}, the {favour(rng, ANIMALS)} "
            f"found {some(favour(rng, FOODS))}."
        ),
        f"{who} gave the {favour(rng, OBJECTS)} to {who.possessive} {favour(rng, RELATIVES)}.",
        (
            f"At noon, the {favour(rng, JOBS)} closed the door "
            f"and went to the {favour(rng, PLACES)}."
        ),
        (
            f"The {favour(rng, ANIMALS)} slept under the tree "
            f"because it was {favour(rng, WEATHER)}."
        ),
    ]
    return favour(rng, alternatives)


def sentences(rng: Random, count: int) -> str:
    """Return `count` unrelated sentences."""
    return " ".join(sentence(rng) for _ in range(count))


def filler(rng: Random, num_words: int) -> str:
    """Return at least `num_words` words that put distance between a fact and its question."""
    parts: list[str] = []
    written = 0
    while written < num_words:
        if rng.random() < 0.25 and num_words - written > 180:
            part = f"\n\n{story(rng)}\n\n"
        else:
            part = sentences(rng, rng.randint(2, 6))
        parts.append(part)
        written += len(part.split())
    return " ".join(parts).replace(" \n", "\n").replace("\n ", "\n")
