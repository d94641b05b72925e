"""Whether a rendered conversation holds every text that was given.

A template is free to pass over a message: a role that none of its branches takes, a system
message that is not the first, a list of parts where it looks for a string. The model would
answer a question that was never asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from ..errors import RequestError

Messages = Sequence[Mapping[str, Any]]


@attrs.frozen
class _Text:
    """One text of a conversation.

    Attributes:
        where: Its path.
        role: The role of its message.
        text: The text.
        without: The conversation with an empty text in its place.
    """

    where: str
    role: str
    text: str
    without: Callable[[], Messages]


def check_complete(
    messages: Messages, rendered: str, render: Callable[[Messages], str]
) -> None:
    """Refuse a conversation of which the template has dropped a text.

    A text that is not found may have been rewritten, so the conversation is rendered again with
    an empty text in its place: the same result means that the template never looked at it.
    Assistant messages are left out. Templates drop old reasoning on purpose.

    Args:
        messages: The conversation, as the template has seen it.
        rendered: What the template made of it.
        render: Renders another conversation in the same way.

    Raises:
        RequestError: Naming the message, the part and the role.
    """
    for given in _texts(messages):
        if given.text.strip() not in rendered and _renders(render, given.without(), rendered):
            raise RequestError(
                f"the chat template drops {given.where} (role {given.role!r}): it renders the "
                "same prompt without that text",
                code="text_dropped",
                param="messages",
            )


def _renders(render: Callable[[Messages], str], messages: Messages, rendered: str) -> bool:
    try:
        return render(messages) == rendered
    except RequestError:
        return False  # a template that refuses the empty text has looked at it


def _texts(messages: Messages) -> Iterator[_Text]:
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            continue
        for where, text, content in _contents(message.get("content")):

            def without(index: int = index, content: Any = content) -> Messages:
                emptied = {**messages[index], "content": content}
                return [*messages[:index], emptied, *messages[index + 1 :]]

            yield _Text(f"messages[{index}].content{where}", message["role"], text, without)


def _contents(content: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield each text's path inside a content, the text, and the content without it."""
    if isinstance(content, str):
        yield "", content, ""
        return
    for index, part in enumerate(content):
        emptied = [*content[:index], {**part, "text": ""}, *content[index + 1 :]]
        yield f"[{index}]", part["text"], emptied
