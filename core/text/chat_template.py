"""Rendering of a conversation with the checkpoint's template, in a sandbox.

A template is a program that comes with the weights. A template sees plain values, can neither
change them nor reach Python through them. One range, one product and the whole output are
bounded. Nested loops, and text that doubles in a loop, are not bounded: a template can waste
time and memory, as a model can, but can do no other harm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import CheckpointError, RequestError

if TYPE_CHECKING:
    from jinja2.parser import Parser
    from jinja2.runtime import Context

MAX_RENDERED_CHARS = 1 << 24

# Errors of a template's expressions on messages of an unexpected form.
_FAULTS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_EXPRESSION = re.compile(r"\{[%{].*?[%}]\}", re.DOTALL)
_QUOTED_WORD = re.compile(r"""['"]([\w.-]+)['"]""")
_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt"})


class ChatTemplate:
    """A compiled chat template.

    Attributes:
        source: The template's text.
        roles: Quoted words in the template's expressions that contain `role`.

    Raises:
        CheckpointError: The template is not valid Jinja.
    """

    def __init__(self, source: str, named_tokens: Mapping[str, str]) -> None:
        self.source = source
        self.roles = _named_roles(source)
        self._named_tokens = dict(named_tokens)
        try:
            self._template = _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise CheckpointError(
                f"chat template, line {error.lineno}: {error.message}"
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any],
    ) -> str:
        """Return the prompt's text.

        Args:
            messages: The conversation.
            tools: Tool definitions, or None.
            add_generation_prompt: Whether the text ends by opening an assistant message.
            template_kwargs: Further variables, such as `enable_thinking`.

        Raises:
            RequestError: The template refuses the messages or cannot render them, or a further
                variable has a reserved name.
            CheckpointError: The sandbox stopped the template.
        """
        if taken := _OWN_VARIABLES & template_kwargs.keys():
            raise RequestError(
                f"template_kwargs must not contain {', '.join(sorted(taken))}",
                code="invalid_template_kwargs",
                param="template_kwargs",
            )
        variables = {
            **self._named_tokens,
            **template_kwargs,
            "messages": list(messages),
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._generate(variables)
        except _RefusalError as error:
            raise _request_error("refuses these messages", "template_refused", error) from error
        except SecurityError as error:
            raise CheckpointError(f"the chat template was stopped: {error}") from error
        except _FAULTS as error:
            raise _request_error(
                "cannot render these messages", "template_failed", error
            ) from error

    def _generate(self, variables: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate(variables):
            size += len(piece)
            _check_size(size)
            pieces.append(piece)
        return "".join(pieces)


class _RefusalError(TemplateError):
    """The template called `raise_exception`."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with bounded products; a forbidden attribute raises at once."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_size(
            _power_size(left, right) if operator == "**" else _product_size(left, right)
        )
        return super().call_binop(context, operator, left, right)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"attribute {attribute!r} of {type(obj).__name__} is off limits")


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's text for training; only its body is rendered."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # declared as a mutable set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _named_roles(source: str) -> frozenset[str]:
    expressions = (e for e in _EXPRESSION.findall(source) if "role" in e)
    return frozenset(word for e in expressions for word in _QUOTED_WORD.findall(e))


def _environment() -> _Sandbox:
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[LoopControlExtension, _GenerationBlock],
    )
    environment.filters["tojson"] = _to_json
    helpers: dict[str, Any] = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    environment.globals.update(helpers)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise _RefusalError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _product_size(left: Any, right: Any) -> int:
    """Items of `left * right` for a sequence and an integer, bits for two integers."""
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() + right.bit_length()
    sequence, count = (right, left) if isinstance(left, int) else (left, right)
    if isinstance(sequence, Sequence) and isinstance(count, int):
        return len(sequence) * count
    return 0


def _power_size(left: Any, right: Any) -> int:
    """Bits of `left ** right` if both are integers."""
    both = isinstance(left, int) and isinstance(right, int)
    return left.bit_length() * right if both else 0


def _check_size(size: int) -> None:
    if size > MAX_RENDERED_CHARS:
        raise SecurityError(f"the text exceeds {MAX_RENDERED_CHARS} characters")


def _request_error(verb: str, code: str, error: Exception) -> RequestError:
    reason = str(error) or type(error).__name__
    return RequestError(f"the chat template {verb}: {reason}", code=code, param="messages")
