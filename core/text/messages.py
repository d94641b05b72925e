"""Validation of a conversation before a template renders it.

A template silently ignores parts of a message that it does not know. Parts that no template
reads are refused here, by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeGuard, cast

from ..errors import RequestError, shown

ROLES = frozenset({"system", "user", "assistant", "tool"})
"""Roles that are accepted even if the template does not name them."""

_ROLE = re.compile(r"[\w.-]+")
_MEDIA_FIELDS = ("images", "videos", "audio", "audios")


def check_messages(messages: object, named_roles: Collection[str] = ()) -> None:
    """Refuse anything but a non-empty list of mappings with a known role and usable content.

    A role is one word, because templates may build a special token around the role, and the
    role must not end this token and begin another.

    Args:
        messages: The conversation.
        named_roles: Words that the template compares roles with, accepted beside `ROLES`.

    Raises:
        RequestError: A message is malformed or would not be rendered; the error names the
            first such message and its faulty part.
    """
    if not _is_list(messages) or not messages:
        raise _malformed("messages must be a non-empty list of mappings")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise _malformed(f"{where} must be a mapping, got {type(message).__name__}")
        _check_message(cast("Mapping[str, Any]", message), where, named_roles)


def _check_message(message: Mapping[str, Any], where: str, named: Collection[str]) -> None:
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise _malformed(f"{where}.role must be a word such as 'user', got {shown(role)}")
    if role not in ROLES and role not in named:
        known = ", ".join(sorted(ROLES))
        raise _malformed(f"{where}.role is {role!r}, which no template reads (known: {known})")
    for field in _MEDIA_FIELDS:
        if message.get(field):
            raise _malformed(f"{where}.{field}: messages are text, other input is refused")
    content = message.get("content")
    if content is not None:
        _check_content(content, f"{where}.content")
    elif role != "assistant" or not message.get("tool_calls"):
        raise _malformed(
            f"{where}.content is missing: only an assistant message with tool_calls may omit it"
        )


def check_tools(tools: object) -> None:
    """Refuse anything but None or a list of mappings.

    Raises:
        RequestError: The tools are malformed.
    """
    if tools is None:
        return
    if not _is_list(tools) or not all(isinstance(tool, Mapping) for tool in tools):
        raise RequestError(
            "tools must be a list of mappings", code="invalid_tools", param="tools"
        )


def _check_content(content: object, where: str) -> None:
    if isinstance(content, str):
        return
    if not _is_list(content):
        kind = type(content).__name__
        raise _malformed(f"{where} must be a string, a list of parts or null, got {kind}")
    for index, part in enumerate(content):
        if not isinstance(part, Mapping):
            kind = type(part).__name__
            raise _malformed(f"{where}[{index}]: every part must be a mapping, got {kind}")
        _check_part(cast("Mapping[str, Any]", part), f"{where}[{index}]")


def _check_part(part: Mapping[str, Any], where: str) -> None:
    kind = part.get("type")
    if kind is None:
        raise _malformed(f'{where}.type is missing: {{"type": "text", "text": ...}} is a part')
    if kind != "text":
        raise _malformed(
            f"{where}.type is {shown(kind)}: only parts of type 'text' can be read"
        )
    if not isinstance(part.get("text"), str):
        raise _malformed(f"{where}.text must be a string, got {shown(part.get('text'))}")


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _malformed(reason: str) -> RequestError:
    return RequestError(reason, code="invalid_messages", param="messages")
