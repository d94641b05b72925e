"""Short stories of a child, an animal and a mishap.

Every alternative of a choice is drawn before one is taken: each text, and with it the prompts
of the goldens, hangs on the order of the draws.
"""

from dataclasses import dataclass
from random import Random

from .choice import Person, a, capital, draw_person, favour, some
from .words import (
    ANIMAL_NAMES,
    ANIMALS,
    COLORS,
    FEELINGS,
    FOODS,
    MISHAPS,
    PLACES,
    RELATIVES,
    SIZES,
    WEATHER,
)


@dataclass(frozen=True)
class Cast:
    """Who and what a story is about."""

    hero: Person
    friend: Person
    animal: str
    pet: str
    place: str
    second_place: str
    weather: str
    thing: str
    color: str
    size: str
    food: str
    relative: str


def draw_cast(rng: Random) -> Cast:
    """Draw everything that stays the same throughout a story."""
    hero = friend = draw_person(rng)
    while friend.name == hero.name:
        friend = draw_person(rng)
    return Cast(
        hero,
        friend,
        animal=favour(rng, ANIMALS),
        pet=favour(rng, ANIMAL_NAMES),
        place=favour(rng, PLACES),
        second_place=favour(rng, PLACES),
        weather=favour(rng, WEATHER),
        thing=favour(rng, list(MISHAPS)),
        color=favour(rng, COLORS),
        size=favour(rng, SIZES),
        food=favour(rng, FOODS),
        relative=favour(rng, RELATIVES),
    )


def story(rng: Random) -> str:
    """Tell how a child and an animal put a mishap right, in four to six paragraphs."""
    cast = draw_cast(rng)
    paragraphs = [
        beginning(rng, cast),
        meeting(rng, cast),
        *mishap_and_rescue(rng, cast),
    ]
    if rng.random() < 0.5:
        paragraphs.append(evening(rng, cast))
    paragraphs.append(ending(rng, cast))
    return "\n\n".join(paragraphs)


def say(rng: Random, speaker: Person | str, line: str) -> str:
    """Return `line` as direct speech."""
    verb = favour(rng, ["said", "said", "asked" if line.endswith("?") else "said", "said"])
    rng.random()  # decides nothing, but later draws depend on it
    quoted = f'"{line[:-1]},"' if line.endswith(".") else f'"{line}"'
    return f"{quoted} {verb} {speaker}."


def beginning(rng: Random, cast: Cast) -> str:
    """Introduce the hero and the thing."""
    hero, thing = cast.hero, f"{a(cast.size)} {cast.color} {cast.thing}"
    scene = [
        (
            f"Once upon a time, there was a little {hero.kind} named {hero}. "
            f"{hero} lived near {a(cast.place)}."
        ),
        f"One {cast.weather} day, a {hero.kind} named {hero} went to the {cast.place}.",
        (
            f"There was a {hero.kind} called {hero}. "
            f"Every day, {hero.subject} walked to the {cast.place}."
        ),
        (
            f"{hero} was a {hero.kind} who loved the {cast.place}. "
            f"It was a {cast.weather} morning."
        ),
    ]
    possession = [
        (
            f"{capital(hero.subject)} had {thing}. "
            f"It was {hero.possessive} favorite thing in the whole world."
        ),
        (
            f"{capital(hero.possessive)} {cast.relative} gave {hero.object} {thing}, "
            f"and {hero.subject} took it everywhere."
        ),
    ]
    return f"{favour(rng, scene)} {favour(rng, possession)}"


def meeting(rng: Random, cast: Cast) -> str:
    """Let the hero meet the animal."""
    hero, pet = cast.hero, cast.pet
    encounter = [
        (
            f"One day, {hero} met {a(cast.animal)} named {pet}. "
            f"{pet} was very {favour(rng, FEELINGS)}."
        ),
        (
            f"At the {cast.place}, {hero.subject} saw {a(cast.animal)}. "
            f"The {cast.animal}'s name was {pet}."
        ),
    ]
    question = [
        f"Hello, {pet}! Do you want to play with my {cast.thing}?",
        f"Would you like to see my {cast.color} {cast.thing}?",
    ]
    reply = [
        f'"Yes, please," said {pet}. "I have never seen {a(cast.color)} {cast.thing} before."',
        f"{pet} nodded and smiled.",
    ]
    greeting = f"{favour(rng, encounter)} {say(rng, hero, favour(rng, question))}"
    return f"{greeting} {favour(rng, reply)}"


def mishap_and_rescue(rng: Random, cast: Cast) -> tuple[str, str]:
    """Let the thing come to harm, and the friends put it right."""
    trouble, remedy = MISHAPS[cast.thing]
    sentences = [f"But then something bad happened. The {cast.thing} {trouble}."]
    sentences.append(dismay(rng, cast))
    with_friend = rng.random() < 0.6
    sentences.append(offer_of_help(rng, cast, with_friend))
    helpers = f"{cast.hero}, {cast.friend}" if with_friend else f"{cast.hero}"
    rescue = (
        f"So {helpers} and {cast.pet} {remedy}. "
        "It took a long time, but they did not give up. "
        f"At last, the {cast.thing} was safe."
    )
    return " ".join(sentences), f"{rescue} {relief(rng, cast)}"


def dismay(rng: Random, cast: Cast) -> str:
    """Say how the hero takes the mishap."""
    hero = cast.hero
    alternatives = [
        (
            f"{hero} felt {favour(rng, ['sad', 'worried', 'scared'])}. "
            f"{capital(hero.subject)} did not know what to do."
        ),
        f"{hero} began to cry. {say(rng, hero, f'Oh no, my {cast.thing} is gone!')}",
    ]
    return favour(rng, alternatives)


def offer_of_help(rng: Random, cast: Cast, with_friend: bool) -> str:
    """Let the friend, or else the animal, offer help."""
    hero, friend = cast.hero, cast.friend
    if not with_friend:
        return say(rng, cast.pet, "Do not worry. I have an idea.")
    return (
        f"Just then {friend} came along. {say(rng, friend, f'What is wrong, {hero}?')} "
        f"{hero} told {friend.object} about the {cast.color} {cast.thing}. "
        f"{say(rng, friend, 'Do not worry. I will help you.')}"
    )


def relief(rng: Random, cast: Cast) -> str:
    """Say how glad the hero is."""
    hero = cast.hero
    alternatives = [
        (
            f"{say(rng, hero, 'Thank you so much!')} {capital(hero.subject)} was "
            f"{favour(rng, ['happy', 'proud', 'excited'])} again."
        ),
        (
            f"{hero} was so happy that {hero.subject} shared "
            f"{hero.possessive} {cast.food} with {cast.pet}."
        ),
    ]
    return favour(rng, alternatives)


def evening(rng: Random, cast: Cast) -> str:
    """Let the day end with a meal."""
    alternatives = [
        (
            f"The sun went down behind the {cast.second_place}, and the sky was "
            f"{favour(rng, ['red', 'golden', 'pink'])}."
        ),
        f"{cast.pet} fell asleep next to the {cast.color} {cast.thing}.",
    ]
    meal = f"Later, they went to the {cast.second_place} and ate {some(cast.food)}."
    return f"{meal} {favour(rng, alternatives)}"


def ending(rng: Random, cast: Cast) -> str:
    """Close the story."""
    hero = cast.hero
    alternatives = [
        (
            f"From that day on, {hero} and {cast.pet} were best friends, "
            f"and {hero.subject} never forgot that friends help each other."
        ),
        (
            f"When {hero} came home, {hero.possessive} {cast.relative} said, "
            '"I am proud of you." The end.'
        ),
        f"{hero} learned that it is good to ask for help. The end.",
    ]
    return favour(rng, alternatives)
