"""Facts about people and tables, asked back at a distance."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from .choice import a, digits
from .filler import filler
from .words import ANIMAL_NAMES, ANIMALS, CITIES, CODEWORDS, COLORS, FOODS, JOBS, NAMES, WORDS


@dataclass(frozen=True)
class Fact:
    """A statement, the question that it answers, and the short answer."""

    statement: str
    question: str
    value: str


def _pet(rng: Random) -> str:
    return a(f"{rng.choice(ANIMALS)} named {rng.choice(ANIMAL_NAMES)}")


# kind -> (statement, question, how the value is drawn)
KINDS: dict[str, tuple[str, str, Callable[[Random], str]]] = {
    "code": ("The code of {name} is {value}.", "What is the code of {name}?", digits),
    "color": (
        "The favorite color of {name} is {value}.",
        "What is the favorite color of {name}?",
        lambda rng: rng.choice(COLORS),
    ),
    "city": (
        "{name} lives in {value}.",
        "Where does {name} live?",
        lambda rng: rng.choice(CITIES),
    ),
    "word": (
        "The secret word of {name} is {value}.",
        "What is the secret word of {name}?",
        lambda rng: rng.choice(CODEWORDS),
    ),
    "pet": ("{name} has {value}.", "Which pet does {name} have?", _pet),
    "job": (
        "{name} works as {value}.",
        "What is the job of {name}?",
        lambda rng: a(rng.choice(JOBS)),
    ),
    "age": (
        "{name} is {value} years old.",
        "How old is {name}?",
        lambda rng: str(rng.randint(5, 99)),
    ),
    "likes": (
        "{name} likes {value} most of all.",
        "Which food does {name} like most?",
        lambda rng: rng.choice(FOODS),
    ),
}


def draw_facts(rng: Random, count: int) -> list[Fact]:
    """Draw facts about `count` different people: all of them codes, or of mixed kinds."""
    names = rng.sample(NAMES, count)
    mixed = rng.choice([False, False, False, True])
    return [_fact(rng, name, rng.choice(list(KINDS)) if mixed else "code") for name in names]


def _fact(rng: Random, name: str, kind: str) -> Fact:
    statement, question, draw = KINDS[kind]
    value = draw(rng)
    return Fact(statement.format(name=name, value=value), question.format(name=name), value)


def recall(rng: Random, num_words: int | None = None) -> str:
    """State facts, let `num_words` words of filler pass, and ask the facts back."""
    facts = draw_facts(rng, rng.choice([1, 1, 2, 2, 3, 4, 6, 8, 10]))
    if num_words is None:
        num_words = rng.choice([0, 0, 10, 20, 40, 80, 120, 200, 300])
    together = rng.random() < 0.5
    body = (_facts_first if together else _facts_scattered)(rng, facts, num_words)
    return f"{body}\n\n{_questions(rng, facts)}"


def _facts_first(rng: Random, facts: list[Fact], num_words: int) -> str:
    head = " ".join(fact.statement for fact in facts)
    return f"{head}\n\n{filler(rng, num_words)}" if num_words else head


def _facts_scattered(rng: Random, facts: list[Fact], num_words: int) -> str:
    share = num_words // len(facts)
    parts: list[str] = []
    for fact in facts:
        parts.append(fact.statement)
        if share >= 5:
            parts.append(filler(rng, share))
    return " ".join(parts)


def _questions(rng: Random, facts: list[Fact]) -> str:
    asked = list(facts)
    rng.shuffle(asked)
    if rng.random() < 0.3:
        asked = asked[: rng.randint(1, len(facts))]
    if rng.random() < 0.5:
        return "\n".join(f"Question: {fact.question} Answer: {fact.value}" for fact in asked)
    return "\n".join(f"{fact.question} {fact.statement}" for fact in asked)


def lookup_table(rng: Random) -> str:
    """Write a table of pairs, and then the same pairs in another order."""
    keys = rng.sample(WORDS, rng.randint(3, 14))
    values = [_cell(rng) for _ in keys]
    order = list(range(len(keys)))
    rng.shuffle(order)
    separator = rng.choice([" = ", ": ", " -> "])
    rows = [f"{key}{separator}{value}" for key, value in zip(keys, values, strict=True)]
    return "\n".join(["Table:", *rows, "Look up:", *(rows[index] for index in order)])


def _cell(rng: Random) -> str:
    if rng.random() < 0.6:
        return digits(rng, rng.choice([2, 3, 4]))
    return rng.choice(WORDS)
