"""Random choices and the little grammar around them.

A story's choices are skewed, so that a trained model has a clear favourite at each of them;
what a text asks back later is uniform (`rng.choice`), so that it can only be copied.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from .words import BOYS, GIRLS, UNCOUNTED_FOODS

T = TypeVar("T")


@functools.cache
def _weights(count: int) -> tuple[float, ...]:
    return tuple(0.72**rank + 0.02 for rank in range(count))


def favour(rng: Random, options: Sequence[T]) -> T:
    """Choose one option; each is liked a good quarter less than the one before it."""
    return rng.choices(options, _weights(len(options)))[0]


def digits(rng: Random, count: int = 4) -> str:
    """Draw `count` uniform digits."""
    return "".join(rng.choice("0123456789") for _ in range(count))


def a(noun: str) -> str:
    """Put the indefinite article before `noun`."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def some(food: str) -> str:
    """Put an article before a food that one can count."""
    return food if food in UNCOUNTED_FOODS else a(food)


def capital(text: str) -> str:
    """Return `text` with its first letter in upper case."""
    return text[0].upper() + text[1:]


@dataclass(frozen=True)
class Person:
    """A child with its pronouns."""

    name: str
    subject: str
    object: str
    possessive: str
    kind: str

    def __str__(self) -> str:
        """Return the name."""
        return self.name


def draw_person(rng: Random) -> Person:
    """Draw a girl or a boy."""
    if rng.random() < 0.5:
        return Person(favour(rng, GIRLS), "she", "her", "her", "girl")
    return Person(favour(rng, BOYS), "he", "him", "his", "boy")
