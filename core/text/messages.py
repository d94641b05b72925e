"""What a conversation must look like before a template sees it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, cast

from ..errors import RequestError

_ROLE = re.compile(r"[\w.-]+")


def check_messages(messages: object) -> None:
    """Refuse anything but a non-empty list of mappings with a role and a usable content.

    A role is one word: templates may build a special token around it, and it must not close
    that token and open another.

    Raises:
        RequestError: Naming the first message that is malformed.
    """
    if not _is_list(messages) or not messages:
        raise _malformed("messages must be a non-empty list of mappings")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise _malformed(f"{where} must be a mapping, got {type(message).__name__}")
        fields = cast("Mapping[str, Any]", message)
        role = fields.get("role")
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise _malformed(f"{where}.role must be a word such as 'user', got {role!r}")
        _check_content(fields.get("content"), f"{where}.content")


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
    if content is None or isinstance(content, str):
        return
    if not _is_list(content):
        kind = type(content).__name__
        raise _malformed(f"{where} must be a string, a list of parts or null, got {kind}")
    if not all(isinstance(part, Mapping) for part in content):
        raise _malformed(f"{where}: every part must be a mapping")


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _malformed(reason: str) -> RequestError:
    return RequestError(reason, code="invalid_messages", param="messages")
