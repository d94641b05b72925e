"""Copying and counting."""

from collections.abc import Iterable
from random import Random

from .choice import digits
from .filler import filler, sentences
from .words import DAYS, NUMBERS, WORDS


def copying(rng: Random) -> str:
    """Write something twice: words, a list with filler between, digits, or sentences."""
    kind = rng.random()
    if kind < 0.35:
        return _copied_words(rng)
    if kind < 0.6:
        return _copied_list(rng)
    if kind < 0.8:
        number = digits(rng, rng.randint(5, 40))
        return f"Number: {number}\nThe same number: {number}"
    text = sentences(rng, rng.randint(1, 8))
    return f"First time: {text}\nSecond time: {text}"


def _copied_words(rng: Random) -> str:
    line = "Copy: " + " ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 60)))
    return "\n".join([line] * (3 if rng.random() < 0.3 else 2))


def _copied_list(rng: Random) -> str:
    items = ", ".join(rng.sample(WORDS, rng.randint(3, 12)))
    between = filler(rng, rng.choice([0, 0, 20, 60, 150]))
    text = f"The list is: {items}.\n{between}\nAgain, the list is: {items}."
    return text.replace("\n\n", "\n")


def counting(rng: Random) -> str:
    """Count up, down, in steps, in words, or through the week."""
    kind = rng.random()
    if kind < 0.45:
        return _count_up(rng)
    if kind < 0.6:
        return _count_down(rng)
    if kind < 0.75:
        return _count_by(rng)
    if kind < 0.88:
        return _count_in_words(rng)
    first, count = rng.randint(0, 6), rng.randint(4, 14)
    return _enumeration("Days", (DAYS[(first + i) % 7] for i in range(count)))


def _enumeration(head: str, items: Iterable[object]) -> str:
    return f"{head}: " + ", ".join(map(str, items)) + "."


def _count_up(rng: Random) -> str:
    first, steps = rng.randint(0, 300), rng.randint(5, 40)
    last = first + steps
    return _enumeration(f"Count from {first} to {last}", range(first, last + 1))


def _count_down(rng: Random) -> str:
    first = rng.randint(10, 200)
    last = first - rng.randint(5, min(first, 25))
    return _enumeration(f"Count down from {first} to {last}", range(first, last - 1, -1))


def _count_by(rng: Random) -> str:
    stride = rng.choice([2, 5, 10])
    first, count = rng.randint(0, 10) * stride, rng.randint(5, 25)
    numbers = range(first, first + count * stride, stride)
    return _enumeration(f"Count by {stride} from {first}", numbers)


def _count_in_words(rng: Random) -> str:
    first = rng.randint(0, 8)
    last = rng.randint(first + 3, 20)
    head = f"Count in words from {NUMBERS[first]} to {NUMBERS[last]}"
    return _enumeration(head, NUMBERS[first : last + 1])
