"""ChatML conversations: questions, remembered facts, stories, thinking, tool calls."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from .choice import digits, draw_person, favour
from .filler import filler
from .questions import Turn, question
from .recall import draw_facts
from .stories import story
from .words import CITIES, NAMES, OBJECTS, PLACES, WEATHER

SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a friendly storyteller.",
    "You are a careful assistant. Answer in one short sentence.",
    "You are a patient teacher.",
]


def message(role: str, text: str) -> str:
    """Return one ChatML message."""
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


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
