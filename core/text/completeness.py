"""The check that a rendered conversation contains every given text.

A template may silently skip a message: a role without a branch, a system message that is not
the first, a list of parts in place of a string. The model would then answer another question
than the user's.
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
        where: Path of the text.
        role: Role of the message.
        text: The text itself.
        without: Returns the conversation with an empty text instead.
    """

    where: str
    role: str
    text: str
    without: Callable[[], Messages]


def check_complete(
    messages: Messages, rendered: str, render: Callable[[Messages], str]
) -> None:
    """Refuse a conversation if the template has dropped one of its texts.

    A text that is missing from the result may have been rewritten. So the conversation is
    rendered again with an empty text instead: an equal result proves that the template ignores
    the text. Assistant messages are not checked, as templates drop old reasoning on purpose.

    Args:
        messages: The conversation, as given to the template.
        rendered: The template's output.
        render: Renders another conversation in the same way.

    Raises:
        RequestError: A text was dropped; the error names the message, the part and the role.
    """
    for given in _texts(messages):
        if given.text.strip() not in rendered and _renders(render, given.without(), rendered):
            raise RequestError(
                f"the chat template drops {given.where} (role {given.role!r}): the prompt "
                "is the same without this text",
                code="text_dropped",
                param="messages",
            )


def _renders(render: Callable[[Messages], str], messages: Messages, rendered: str) -> bool:
    try:
        return render(messages) == rendered
    except RequestError:
        return False  # a template that refuses the empty text does read the text


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
    """Yield each text's path in a content, the text, and the content with it emptied."""
    if isinstance(content, str):
        yield "", content, ""
        return
    for index, part in enumerate(content):
        emptied = [*content[:index], {**part, "text": ""}, *content[index + 1 :]]
        yield f"[{index}]", part["text"], emptied
