from __future__ import annotations

from typing import Any

import pytest

from neve.errors import RequestError
from neve.text.messages import check_messages, check_tools


@pytest.mark.parametrize(
    "content", ["text", "", None, [], [{"type": "text", "text": "a"}], ({"type": "image"},)]
)
def test_good_content(content: Any):
    """A content may be a string, null or a list of parts."""
    check_messages([{"role": "user", "content": content}])


def test_content_may_be_missing():
    """An assistant message that only calls tools needs no content."""
    check_messages([{"role": "assistant", "tool_calls": []}])


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
        ([{"role": "user", "content": ["a"]}], "every part"),
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
