"""A conversation with a model: a history that every turn sends whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .arguments import instance, reading
from .engine.completion import Completion
from .engine.handles import Handle
from .engine.stream import Stream
from .text.messages import check_messages
from .text.reasoning import split_reasoning


class Chat:
    """A conversation: every turn sends the whole history, of which the cache knows the most.

    A turn that fails or is abandoned leaves the history as it was. One turn at a time.

    Attributes:
        messages: The history so far.
    """

    def __init__(
        self,
        submit: Callable[..., Handle],
        system: str | None,
        options: Mapping[str, Any],
        *,
        reasoning: tuple[str, str] | None,
    ) -> None:
        """Begin a conversation.

        Args:
            submit: `Model.submit`.
            system: System message.
            options: Defaults for every turn.
            reasoning: Marks around the reasoning part of an answer.
        """
        self.messages: list[dict[str, Any]] = []
        self._submit = submit
        self._options = dict(options)
        self._reasoning = reasoning
        if system is not None:
            self.messages.append({"role": "system", "content": system})

    def send(self, content: str | Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Send a user message and return the answer.

        Args:
            content: The message: text, or text parts.
            **options: As in `Model.submit`, before the conversation's own.

        Raises:
            RequestError: As in `Model.submit`.
        """
        messages, handle = self._turn(content, options)
        completion = handle.result()
        self.remember(messages, completion)
        return completion

    def stream(self, content: str | Sequence[Mapping[str, Any]], **options: Any) -> Stream:
        """Send a user message and return the answer's pieces.

        The turn is queued by this call, not by the first `next`. Leaving the loop cancels it.
        The history grows when the last piece was taken.

        Args:
            content: As in `send`.
            **options: As in `send`.

        Raises:
            RequestError: As in `Model.submit`.
        """
        messages, handle = self._turn(content, options)
        return Stream(handle, lambda completion: self.remember(messages, completion))

    def _turn(
        self, content: object, options: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], Handle]:
        messages = [*self.messages, {"role": "user", "content": content}]
        return messages, self._submit(messages, **{**self._options, **options})

    def remember(self, messages: list[dict[str, Any]], completion: Completion) -> None:
        """Make a turn that was run elsewhere the end of the history.

        Args:
            messages: What was sent, the user's message last.
            completion: The answer; its reasoning part is kept apart from its content.

        Raises:
            RequestError: The messages are malformed, or the completion is none.
        """
        with reading("messages"):
            check_messages(messages)
        completion = instance("completion", completion, Completion, "a Completion")
        reasoning, answer = split_reasoning(completion.text, self._reasoning)
        message: dict[str, Any] = {"role": "assistant", "content": answer}
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        self.messages = [*messages, message]
