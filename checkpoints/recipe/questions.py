"""Questions that can be answered without what was said before."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from .choice import a, capital, favour
from .words import CAPITALS, DAYS, NAMES, OPPOSITES, SOUNDS, WORDS


@dataclass(frozen=True)
class Turn:
    """What the user says, what the assistant answers, and what it thinks before."""

    user: str
    assistant: str
    thought: str | None = None


def _capital(rng: Random) -> Turn:
    country = rng.choice(list(CAPITALS))
    city = CAPITALS[country]
    return Turn(
        f"What is the capital of {country}?",
        f"The capital of {country} is {city}.",
        f"The user asks about {country}. Its capital is {city}.",
    )


def _sound(rng: Random) -> Turn:
    animal = rng.choice(list(SOUNDS))
    says = f"{animal} says {SOUNDS[animal]}."
    return Turn(f"What sound does {a(animal)} make?", capital(a(says)), f"A {says}")


def _opposite(rng: Random) -> Turn:
    word = rng.choice(list(OPPOSITES))
    pair = word, OPPOSITES[word]
    asked, answer = pair if rng.random() < 0.5 else pair[::-1]
    statement = f"The opposite of {asked} is {answer}."
    return Turn(f"What is the opposite of {asked}?", statement, statement)


def _sum(rng: Random) -> Turn:
    x, y = rng.randint(0, 9), rng.randint(0, 9)
    return Turn(
        f"What is {x} plus {y}?",
        f"{x} plus {y} is {x + y}.",
        f"I add {x} and {y}. The sum is {x + y}.",
    )


def _count(rng: Random) -> Turn:
    first = rng.randint(1, 60)
    last = first + rng.randint(4, 12)
    return Turn(
        f"Count from {first} to {last}.",
        ", ".join(map(str, range(first, last + 1))) + ".",
        f"I start at {first} and stop at {last}.",
    )


def _day(rng: Random) -> Turn:
    index = rng.randint(0, 6)
    day, after = DAYS[index], DAYS[(index + 1) % 7]
    return Turn(
        f"What day comes after {day}?",
        f"The day after {day} is {after}.",
        f"After {day} comes {after}.",
    )


def _repeat(rng: Random) -> Turn:
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 12)))
    return Turn(f"Repeat these words: {text}", text, "I say the same words again.")


def _greeting(rng: Random) -> Turn:
    name = favour(rng, NAMES)
    return Turn(
        f"Hello! My name is {name}.",
        f"Hello, {name}! How can I help you today?",
        f"The user is called {name}.",
    )


def _spelling(rng: Random) -> Turn:
    word = rng.choice(WORDS)
    return Turn(f"Spell the word {word}.", "-".join(word) + ".", f"The word is {word}.")


def _first_word(rng: Random) -> Turn:
    first, second = rng.choice(WORDS), rng.choice(WORDS)
    return Turn(
        f"Which word comes first, {first} or {second}?",
        f"The word {first} comes first.",
        f"You said {first} first.",
    )


QUESTIONS: list[Callable[[Random], Turn]] = [
    _capital,
    _sound,
    _opposite,
    _sum,
    _count,
    _day,
    _repeat,
    _greeting,
    _spelling,
    _first_word,
]


def question(rng: Random) -> Turn:
    """Draw a question that can be answered without what was said before."""
    return rng.choice(QUESTIONS)(rng)
