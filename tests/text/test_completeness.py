"""No text of a conversation vanishes in a template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from neve.errors import RequestError
from neve.text.tokenizer import Tokenizer

# ignores what it does not know, as many published templates do
PICKY = """{%- for m in messages -%}
{%- if m.role == 'user' and m.content is string -%}U: {{ m.content | trim }}
{% elif m.role == 'system' and loop.first -%}S: {{ m['content'] }}
{% elif m.role == 'assistant' -%}A: {{ m.content.split('</think>')[-1] }}
{% elif m.role == 'critic' -%}C: {{ m.content | tojson }}
{% endif -%}
{%- endfor -%}"""


@pytest.fixture
def picky(make_tokenizer: Callable[..., Tokenizer]) -> Tokenizer:
    return make_tokenizer(chat_template=PICKY)


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"role": "tool", "content": "42"}, r"messages\[1\]\.content \(role 'tool'\)"),
        ({"role": "system", "content": "Be brief."}, r"messages\[1\]\.content"),
        (
            {"role": "user", "content": [{"type": "text", "text": "and?"}]},
            r"messages\[1\]\.content\[0\]",
        ),
    ],
)
def test_dropped_text_is_refused(picky: Tokenizer, message: dict[str, Any], path: str):
    """What a template passes over without a word is an error that names it."""
    with pytest.raises(RequestError, match=path) as caught:
        picky.encode_messages([{"role": "user", "content": "Hi"}, message])

    assert (caught.value.code, caught.value.param) == ("text_dropped", "messages")


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "  spaced \n"},
        {"role": "user", "content": ""},
        {"role": "user", "content": " "},
        {"role": "critic", "content": 'rewritten as "JSON"'},
        {"role": "assistant", "content": "<think>left out on purpose</think>"},
    ],
)
def test_rewritten_text_is_fine(picky: Tokenizer, message: dict[str, Any]):
    """A template may trim, escape, and leave out old reasoning."""
    messages = [{"role": "system", "content": "S"}, message]

    assert picky.decode(picky.encode_messages(messages)).startswith("S: S")


def test_text_that_stands_twice(picky: Tokenizer):
    """A text that another message holds as well is found; no second rendering is needed."""
    messages = [{"role": "user", "content": "Hi <|im_end|>"}] * 2

    assert picky.decode(picky.encode_messages(messages)).count("U: Hi") == 2
