"""The nineteen prompts of the goldens. Needs neither torch nor transformers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

from .chats import TOOLS
from .choice import digits
from .filler import filler
from .stories import story
from .tokenizer import TEMPLATE
from .words import NAMES, WORDS

HELPFUL = "You are a helpful assistant."


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt; of a chat, `text` is what the chat template makes of `chat`."""

    id: str
    max_new: int
    text: str
    expect: str | None = None
    chat: Mapping[str, Any] | None = None

    def record(self) -> dict[str, Any]:
        """Return the prompt as golden.json holds it."""
        expect = {"expect": self.expect} if self.expect else {}
        fields = {"id": self.id, "max_new": self.max_new, **expect}
        return {**fields, **(self.chat or {}), "text": self.text}


def build_prompts() -> list[Prompt]:
    """Return all prompts, always the same ones."""
    return [*_plain_prompts(), *_recall_prompts(), *_pattern_prompts(), *_chat_prompts()]


# ------------------------------------------------------------------ texts
def _plain_prompts() -> list[Prompt]:
    anna = (
        "Once upon a time, there was a little girl named Anna. "
        "Anna lived near a park. She had a small red ball."
    )
    rosa = "One sunny day, a girl named Rosa went to the forest. She had a big blue kite."
    rng = Random(11)
    stories = [story(rng) for _ in range(4)]
    return [
        Prompt(id="one_token", max_new=64, text="The"),
        Prompt(id="story_short", max_new=96, text=anna),
        Prompt(id="story_long", max_new=96, text="\n\n".join([*stories, rosa])),
    ]


def _recall_prompts() -> list[Prompt]:
    return [
        recall_prompt("recall_short", seed=12, num_facts=3, asked=1, num_words=0),
        recall_prompt("recall_mid", seed=13, num_facts=4, asked=2, num_words=220),
        recall_prompt("recall_long", seed=14, num_facts=4, asked=0, num_words=700),
    ]


def recall_prompt(id: str, *, seed: int, num_facts: int, asked: int, num_words: int) -> Prompt:  # noqa: A002 - the field's name
    """State codes, let `num_words` words pass, and ask for one of the codes."""
    rng = Random(seed)
    names = rng.sample(NAMES, num_facts)
    codes = [digits(rng) for _ in names]
    facts = [f"The code of {name} is {code}." for name, code in zip(names, codes, strict=True)]
    name, code = names[asked], codes[asked]
    question = f"What is the code of {name}? The code of {name} is"
    distance = [filler(rng, num_words)] if num_words else []
    text = "\n\n".join([" ".join(facts), *distance, question])
    return Prompt(id=id, max_new=24, text=text, expect=code)


def _pattern_prompts() -> list[Prompt]:
    rng = Random(15)
    words = " ".join(rng.choice(WORDS) for _ in range(40))
    table = (
        "Table:\ndog = 4821\nlamp = 77\nriver = 903\ncake = 5162\nstar = 38\n"
        "Look up:\nriver = 903\ndog ="
    )
    count = "Count from 37 to 58: 37, 38, 39,"
    rare = "Copy: caf\u00e9 na\u00efve \u65e5\u672c \U0001f642 star\nCopy:"
    genesis = "In the beginning God created the heaven and the earth."
    return [
        Prompt(id="table", max_new=40, text=table, expect="4821"),
        Prompt(id="count", max_new=96, text=count, expect="50, 51, 52"),
        Prompt(id="copy", max_new=96, text=f"Copy: {words}\nCopy:", expect=words[-30:]),
        Prompt(id="copy_bytes", max_new=48, text=rare),
        Prompt(id="kjv", max_new=64, text=genesis),
    ]


# ------------------------------------------------------------------ chats
def _chat_prompts() -> list[Prompt]:
    capital = _dialogue("What is the capital of France?", system=HELPFUL)
    story_request = _dialogue("Tell me a story.", system="You are a friendly storyteller.")
    weather = _dialogue("What is the weather in Rome?", system=HELPFUL)
    addition = _dialogue("What is 3 plus 5?")
    duck = _dialogue("What sound does a duck make?")
    tools = [tool.spec() for tool in TOOLS[:2]]
    thinking, silent = {"enable_thinking": True}, {"enable_thinking": False}
    return [
        _chat("chat_short", 48, capital, expect="Paris"),
        _chat("chat_multi", 48, _remembered_code(), expect="7319"),
        _chat("chat_long", 48, _code_before_stories(), expect="6402"),
        _chat("chat_story", 128, story_request),
        _chat("chat_tool", 64, weather, tools=tools, expect="get_weather"),
        _chat("chat_tool_result", 48, _called_tool(), tools=tools, expect="8034"),
        _chat("chat_think", 64, addition, template=thinking, expect="</think>"),
        _chat("chat_nothink", 48, duck, template=silent, expect="quack"),
    ]


def _remembered_code() -> list[dict[str, Any]]:
    return _dialogue(
        "Please remember this. The code of Max is 7319. The code of Ida is 2056.",
        "I will remember that.",
        "What is the opposite of hot?",
        "The opposite of hot is cold.",
        "What is the code of Max?",
    )


def _code_before_stories() -> list[dict[str, Any]]:
    rng = Random(16)
    return _dialogue(
        "Please remember this. The code of Vera is 6402. The code of Sam is 9175.",
        "I will remember that.",
        *("Tell me a story.", story(rng)),
        *("Tell me a story.", story(rng)),
        filler(rng, 180) + "\n\nDid you read this?",
        "Yes, I read it.",
        "What is the code of Vera?",
        system=HELPFUL,
    )


def _called_tool() -> list[dict[str, Any]]:
    function = {"name": "lookup_code", "arguments": {"name": "Emma"}}
    call = {"type": "function", "function": function}
    return [
        *_dialogue("Find the code of Emma.", system=HELPFUL),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "8034"},
    ]


def _dialogue(*texts: str, system: str | None = None) -> list[dict[str, Any]]:
    """Return messages, in turn of the user and of the assistant."""
    head = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return head + [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def _chat(
    id: str,  # noqa: A002 - the field's name
    max_new: int,
    messages: list[dict[str, Any]],
    *,
    expect: str | None = None,
    **context: Any,
) -> Prompt:
    chat = {"messages": messages, **context}
    return Prompt(id=id, max_new=max_new, text=render(**chat), expect=expect, chat=chat)


def render(
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    template: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of a chat up to where the assistant begins.

    Args:
        messages: The chat's messages.
        tools: Descriptions of the functions that may be called.
        template: More variables of the chat template.
    """
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    compiled = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    context = {"messages": messages, "tools": tools, **(template or {})}
    return compiled.render(**context, add_generation_prompt=True)
