"""Conversion of a prompt in any of its forms to token ids."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, cast

from ..arguments import reading, wrong
from ..errors import RequestError, shown
from .messages import check_tools

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = "str | Sequence[int] | Sequence[Message]"

_FORMS = "text, token ids (a list or a one-dimensional array of integers), or chat messages"


def encode_prompt(
    tokenizer: Tokenizer,
    prompt: object,
    *,
    vocab_size: int,
    tools: Sequence[Message] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the token ids of a prompt.

    Args:
        tokenizer: The model's tokenizer.
        prompt: Text, token ids, or chat messages.
        vocab_size: Width of the logits and bound of the ids.
        tools: Tool definitions for the template; messages only.
        template_kwargs: Further variables for the template; messages only.

    Raises:
        RequestError: The prompt is empty, of another form, or has ids outside the vocabulary;
            or the template's arguments are malformed, or given without messages.
    """
    with reading("tools"):
        check_tools(tools)
    with reading("template_kwargs"):
        check_template_kwargs(template_kwargs)
    with reading("prompt"):
        if _is_messages(prompt):
            ids = tokenizer.encode_messages(
                prompt, tools=tools, template_kwargs=template_kwargs
            )
        else:
            _refuse_template_arguments(tools, template_kwargs)
            ids = _plain_ids(tokenizer, prompt, vocab_size)
    if not ids:
        raise RequestError(
            "the prompt is empty: at least one token is needed",
            code="empty_prompt",
            param="prompt",
        )
    return ids


def check_template_kwargs(template_kwargs: object) -> None:
    """Refuse anything but None or a mapping of names to values.

    Raises:
        RequestError: `template_kwargs` is anything else.
    """
    if template_kwargs is None:
        return
    if not isinstance(template_kwargs, Mapping):
        raise wrong("template_kwargs", template_kwargs, "a mapping of names to values")
    for name in cast("Mapping[Any, Any]", template_kwargs):
        if not isinstance(name, str) or not name.isidentifier():
            raise wrong("template_kwargs", name, "keyed by names")


def check_ids(ids: Iterable[Any], vocab_size: int) -> list[int]:
    """Return token ids as plain integers.

    Raises:
        RequestError: An id is no integer, or outside the vocabulary.
    """
    checked = [_token_id(token) for token in ids]
    for token in checked:
        if not 0 <= token < vocab_size:
            raise _invalid(f"token id {token} is outside the vocabulary of {vocab_size}")
    return checked


def _token_id(token: Any) -> int:
    if type(token) is int:
        return token
    # bool is a subclass of int, and arrays with one element convert to an index
    if isinstance(token, bool) or getattr(token, "ndim", 0):
        raise _stranger(token)
    try:
        return operator.index(token)
    except TypeError:
        raise _stranger(token) from None


def _is_messages(prompt: object) -> TypeGuard[Sequence[Message]]:
    return _is_sequence(prompt) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(
        value, str | bytes | bytearray | memoryview
    )


def _refuse_template_arguments(tools: object, template_kwargs: object) -> None:
    for param, value in (("tools", tools), ("template_kwargs", template_kwargs)):
        if value:
            raise RequestError(
                f"{param} are for the chat template, and only messages are rendered: give the "
                "prompt as messages",
                code=f"invalid_{param}",
                param=param,
            )


def _plain_ids(tokenizer: Tokenizer, prompt: Any, vocab_size: int) -> list[int]:
    """Return the ids of a prompt that is not rendered by a template."""
    if isinstance(prompt, str):
        return tokenizer.encode(str.__str__(prompt))
    if isinstance(prompt, bytes | bytearray | memoryview):
        raise wrong("prompt", prompt, f"{_FORMS}; decode bytes to text first")
    if _is_sequence(prompt):
        return check_ids(prompt, vocab_size)
    if getattr(prompt, "ndim", None) == 1 and hasattr(prompt, "tolist"):
        return check_ids(prompt.tolist(), vocab_size)
    if isinstance(prompt, Mapping):
        raise wrong("prompt", prompt, f"{_FORMS}; put a single message into a list")
    raise wrong("prompt", prompt, _FORMS)


def _stranger(token: object) -> RequestError:
    return _invalid(
        "a prompt is a string, token ids, or messages with a role, not a list "
        f"with {shown(token)}"
    )


def _invalid(reason: str) -> RequestError:
    return RequestError(reason, code="invalid_prompt", param="prompt")
