"""A prompt is text, ids or messages, and nothing else."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from neve.errors import RequestError
from neve.text.prompt import encode_prompt
from neve.text.tokenizer import Tokenizer

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        array.array("i", [1, 2, 3]),
        np.array([1, 2, 3]),
        np.array([1, 2, 3], dtype=np.uint16),
        [np.int64(1), np.int32(2), 3],
    ],
)
def test_ids(tiny: Tokenizer, ids: Any):
    """Ids come as a sequence or a one-dimensional array of integers, and leave as integers."""
    taken = encode_prompt(tiny, ids, vocab_size=4096)

    assert taken == [1, 2, 3]
    assert {type(token) for token in taken} == {int}


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (None, "got None"),
        (5, "got 5"),
        (b"abc", "decode bytes"),
        (bytearray(b"abc"), "decode bytes"),
        (memoryview(b"abc"), "decode bytes"),
        ({1, 2}, "must be text, token ids"),
        (iter([1, 2]), "must be text, token ids"),
        ({"role": "user", "content": "Hi"}, "into a list"),
        (np.array([[1, 2]]), "must be text"),
        (np.array(5), "must be text"),
        (np.array([1.0, 2.0]), "a list with 1.0"),
        (np.array([True]), "a list with True"),
        ([[1, 2]], "a list with"),
        ([np.array([1])], "a list with"),
        ([1, MESSAGES[0]], "a list with"),
        ([MESSAGES[0], 1], r"messages\[1\] must be a mapping"),
    ],
)
def test_wrong_prompts(tiny: Tokenizer, prompt: Any, reason: str):
    """Anything else is refused, and the error says what would be right."""
    with pytest.raises(RequestError, match=reason):
        encode_prompt(tiny, prompt, vocab_size=4096)


@pytest.mark.parametrize("prompt", ["Hi", [1, 2], MESSAGES])
@pytest.mark.parametrize(
    "arguments", [{"tools": 3}, {"template_kwargs": 5}, {"template_kwargs": {5: 1}}]
)
def test_malformed_template_arguments(tiny: Tokenizer, prompt: Any, arguments: dict[str, Any]):
    """Tools and variables are checked for every form of prompt."""
    with pytest.raises(RequestError) as caught:
        encode_prompt(tiny, prompt, vocab_size=4096, **arguments)

    assert caught.value.param in arguments


@pytest.mark.parametrize("prompt", ["Hi", [1, 2]])
@pytest.mark.parametrize("arguments", [{"tools": [{}]}, {"template_kwargs": {"a": 1}}])
def test_template_arguments_without_messages(
    tiny: Tokenizer, prompt: Any, arguments: dict[str, Any]
):
    """What only a template reads is refused where none is used, instead of ignored."""
    with pytest.raises(RequestError, match="only messages are rendered"):
        encode_prompt(tiny, prompt, vocab_size=4096, **arguments)


def test_deep_values(tiny: Tokenizer):
    """Nesting deeper than Python's stack is refused like anything else that cannot be read."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RequestError):
        encode_prompt(tiny, MESSAGES, vocab_size=4096, template_kwargs={"a": deep})
