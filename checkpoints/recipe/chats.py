"""ChatML conversations: questions, remembered facts, stories, thinking, tool calls."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from .choice import a, capital, digits, draw_person, favour
from .filler import filler
from .recall import draw_facts
from .stories import story
from .words import (
    CAPITALS,
    CITIES,
    DAYS,
    NAMES,
    OBJECTS,
    OPPOSITES,
    PLACES,
    SOUNDS,
    WEATHER,
    WORDS,
)

SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a friendly storyteller.",
    "You are a careful assistant. Answer in one short sentence.",
    "You are a patient teacher.",
]


@dataclass(frozen=True)
class Turn:
    """What the user says, what the assistant answers, and what it thinks before."""

    user: str
    assistant: str
    thought: str | None = None


def message(role: str, text: str) -> str:
    """Return one ChatML message."""
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


# ------------------------------------------------------------------ questions and answers
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


# ------------------------------------------------------------------ conversations
def fact_turns(rng: Random, num_words: int) -> list[Turn]:
    """Tell facts, talk about other things for `num_words` words, and ask the facts back."""
    facts = draw_facts(rng, rng.choice([1, 1, 2, 3, 5]))
    told = [fact.statement for fact in facts]
    if rng.random() < 0.5:
        told = [" ".join(told)]
    turns = [Turn(f"Please remember this. {text}", "I will remember that.") for text in told]
    turns += _small_talk(rng, num_words)
    rng.shuffle(facts)
    return turns + [Turn(fact.question, fact.statement) for fact in facts]


def _small_talk(rng: Random, num_words: int) -> list[Turn]:
    turns: list[Turn] = []
    written = 0
    while written < num_words:
        turn = _small_talk_turn(rng, num_words - written)
        turns.append(turn)
        written += len((turn.user + turn.assistant).split()) + 6
    return turns


def _small_talk_turn(rng: Random, words_left: int) -> Turn:
    if rng.random() < 0.2 and words_left > 150:
        return Turn("Tell me a story.", story(rng))
    if rng.random() < 0.3:
        text = filler(rng, rng.choice([20, 60, 100]))
        return Turn(f"{text}\n\nDid you read this?", "Yes, I read it.")
    turn = question(rng)
    return Turn(turn.user, turn.assistant)


def _story_turn(rng: Random) -> Turn:
    draw_person(rng)  # nobody sees this person, but later draws depend on it
    requests = ["Tell me a story.", "Please tell me a short story.", "Can you tell me a story?"]
    return Turn(rng.choice(requests), story(rng), "The user wants a story.")


def chat(rng: Random, num_words: int | None = None) -> str:
    """Write a conversation; with `num_words`, one about facts with that much in between."""
    kind = rng.random()
    if num_words is None and kind < 0.15:
        return tool_chat(rng)
    system = message("system", rng.choice(SYSTEM_PROMPTS)) if rng.random() < 0.6 else ""
    thinking = rng.random()
    turns = _turns(rng, kind, num_words)
    return system + "".join(_render(turn, thinking) for turn in turns)


def _turns(rng: Random, kind: float, num_words: int | None) -> list[Turn]:
    if num_words is not None:
        return fact_turns(rng, num_words)
    if kind < 0.45:
        return fact_turns(rng, rng.choice([0, 10, 30, 60, 120, 250]))
    if kind < 0.6:
        return [_story_turn(rng)]
    return [question(rng) for _ in range(rng.choice([1, 2, 2, 3, 4, 6]))]


def _render(turn: Turn, thinking: float) -> str:
    """Write a turn; `thinking` below 0.65 shows none, below 0.83 thoughts, else empty ones."""
    answer = turn.assistant
    if thinking >= 0.83:
        answer = f"<think>\n\n</think>\n\n{answer}"
    elif thinking >= 0.65 and turn.thought:
        answer = f"<think>\n{turn.thought}\n</think>\n\n{answer}"
    return message("user", turn.user) + message("assistant", answer)


# ------------------------------------------------------------------ tools
@dataclass(frozen=True)
class Tool:
    """A function with one string parameter, and what is said around a call of it."""

    name: str
    description: str
    parameter: str
    request: str
    answer: str
    draw_value: Callable[[Random], str]
    draw_result: Callable[[Random], str]

    def spec(self) -> dict[str, Any]:
        """Return the function's description as chat templates take it."""
        parameters = {
            "type": "object",
            "properties": {self.parameter: {"type": "string"}},
            "required": [self.parameter],
        }
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": parameters,
        }
        return {"type": "function", "function": function}


TOOLS = [
    Tool(
        "get_weather",
        "Get the weather in a city.",
        "city",
        request="What is the weather in {value}?",
        answer="The weather in {value} is {result}.",
        draw_value=lambda rng: rng.choice(CITIES),
        draw_result=lambda rng: favour(rng, WEATHER),
    ),
    Tool(
        "lookup_code",
        "Look up the code of a person.",
        "name",
        request="Find the code of {value}.",
        answer="The code of {value} is {result}.",
        draw_value=lambda rng: rng.choice(NAMES),
        draw_result=digits,
    ),
    Tool(
        "find_item",
        "Find where an item is.",
        "item",
        request="Where is the {value}?",
        answer="The {value} is in the {result}.",
        draw_value=lambda rng: rng.choice(OBJECTS),
        draw_result=lambda rng: favour(rng, PLACES),
    ),
]
TOOL_INSTRUCTIONS = """

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{specs}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def tool_chat(rng: Random) -> str:
    """Write a conversation in which every question is answered with a tool."""
    tools = rng.sample(TOOLS, rng.randint(1, len(TOOLS)))
    specs = "\n".join(json.dumps(tool.spec()) for tool in tools)
    system = rng.choice(SYSTEM_PROMPTS) + TOOL_INSTRUCTIONS.format(specs=specs)
    calls = [_tool_turn(rng, tools) for _ in range(rng.randint(1, 3))]
    return message("system", system) + "".join(calls)


def _tool_turn(rng: Random, tools: list[Tool]) -> str:
    tool = rng.choice(tools)
    value, result = tool.draw_value(rng), tool.draw_result(rng)
    call = json.dumps({"name": tool.name, "arguments": {tool.parameter: value}})
    return (
        message("user", tool.request.format(value=value))
        + message("assistant", f"<tool_call>\n{call}\n</tool_call>")
        + message("user", f"<tool_response>\n{result}\n</tool_response>")
        + message("assistant", tool.answer.format(value=value, result=result))
    )
