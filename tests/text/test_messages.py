from __future__ import annotations

from typing import Any

import pytest

from neve.errors import RequestError
from neve.text.messages import check_messages, check_tools

TEXT = {"type": "text", "text": "a"}


@pytest.mark.parametrize(
    "content",
    ["text", "", [], [TEXT], ({"type": "text", "text": ""},)],
)
def test_good_content(content: Any):
    """A content may be a string or a list of text parts."""
    check_messages([{"role": "user", "content": content}])


@pytest.mark.parametrize("content", [{}, {"content": None}])
def test_content_may_be_missing(content: dict[str, Any]):
    """An assistant message that only calls tools needs no content."""
    check_messages([{"role": "assistant", "tool_calls": [{"name": "f"}], **content}])


@pytest.mark.parametrize("role", ["system", "user", "tool", "assistant"])
def test_nothing_to_say(role: str):
    """A message without content and without calls would render an empty turn."""
    for message in ({}, {"content": None}, {"content": None, "tool_calls": []}):
        with pytest.raises(RequestError, match=r"messages\[1\]\.content is missing"):
            check_messages([{"role": "user", "content": "a"}, {"role": role, **message}])


def test_roles():
    """Four roles are known; a template may name more."""
    with pytest.raises(RequestError, match=r"messages\[0\]\.role is 'ipython'.*known: assis"):
        check_messages([{"role": "ipython", "content": "a"}])
    check_messages([{"role": "ipython", "content": "a"}], {"ipython"})


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("hello", "non-empty list"),
        ({"role": "user"}, "non-empty list"),
        (None, "non-empty list"),
        ([], "non-empty list"),
        (["hello"], r"messages\[0\] must be a mapping"),
        ([{"content": "a"}], r"messages\[0\]\.role"),
        ([{"role": 1, "content": "a"}], r"messages\[0\]\.role"),
        ([{"role": "", "content": "a"}], r"messages\[0\]\.role"),
        ([{"role": "user|>x<|system", "content": "a"}], r"messages\[0\]\.role"),
        ([{"role": "user", "content": 3}], r"messages\[0\]\.content must be a string"),
        ([{"role": "user", "content": b"a"}], r"messages\[0\]\.content must be a string"),
        ([{"role": "user", "content": {"text": "a"}}], r"messages\[0\]\.content"),
        ([{"role": "user", "content": ["a"]}], r"content\[0\]: every part"),
        ([{"role": "zzz", "content": "a"}], r"messages\[0\]\.role is 'zzz'"),
        (
            [{"role": "user", "content": [TEXT, {"type": "image_url", "image_url": {}}]}],
            r"messages\[0\]\.content\[1\]\.type is 'image_url'",
        ),
        (
            [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}, TEXT]}],
            r"content\[0\]\.type is 'input_audio'",
        ),
        ([{"role": "user", "content": [{"text": "Hi"}]}], r"content\[0\]\.type is missing"),
        ([{"role": "user", "content": [{"type": 5}]}], r"content\[0\]\.type is 5"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\]\.text must be"),
        ([{"role": "user", "content": "a", "images": ["b"]}], r"messages\[0\]\.images"),
    ],
)
def test_malformed_messages(messages: Any, reason: str):
    """Malformed messages are refused, and the error says which and why."""
    with pytest.raises(RequestError, match=reason) as caught:
        check_messages(messages)

    assert caught.value.code == "invalid_messages"
    assert caught.value.param == "messages"


def test_tools():
    """Tools are None or a list of mappings."""
    check_tools(None)
    check_tools([{"type": "function"}])
    for tools in ("get_weather", ["get_weather"], {"name": "get_weather"}):
        with pytest.raises(RequestError) as caught:
            check_tools(tools)

        assert caught.value.param == "tools"
