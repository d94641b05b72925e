"""The sampling parameters of a request, validated at construction."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import attrs

from ..arguments import reading
from ..errors import InvalidSamplingError

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16

Field: TypeAlias = "attrs.Attribute[Any]"
Reader: TypeAlias = Callable[[Any, Field], Any]


def _is_number(value: object, low: float, high: float) -> bool:
    # bool is a subclass of int; NaN fails every comparison
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    )


def _is_integer(value: object, low: int, high: int | None) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return low <= value and (high is None or value <= high)


def _field(read: Reader, **default: Any) -> Any:
    """Declare a field whose value `read` checks and converts to exact builtin types.

    The engine thread uses the values, and must not run methods of a caller's classes.
    """

    def convert(value: Any, field: Field) -> Any:
        with reading(field.name):
            return read(value, field)

    return attrs.field(converter=attrs.Converter(convert, takes_field=True), **default)


def _number(low: float, high: float) -> Reader:
    def read(value: Any, field: Field) -> float:
        if not _is_number(value, low, high):
            raise InvalidSamplingError(field.name, value, f"a number from {low} to {high}")
        return float(value)

    return read


def _integer(low: int, high: int | None = None, *, or_none: bool = False) -> Reader:
    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
    expected = f"an integer {bounds}" + (" or None" if or_none else "")

    def read(value: Any, field: Field) -> int | None:
        if or_none and value is None:
            return None
        if not _is_integer(value, low, high):
            raise InvalidSamplingError(field.name, value, expected)
        return operator.index(value)

    return read


def _boolean(value: Any, field: Field) -> bool:
    if not isinstance(value, bool):
        raise InvalidSamplingError(field.name, value, "True or False")
    return value


def _biases(value: Any, field: Field) -> Mapping[int, float]:
    if not isinstance(value, Mapping):
        raise InvalidSamplingError(field.name, value, "a mapping of token ids to biases")
    biases: dict[int, float] = {}
    for token, bias in cast("Mapping[Any, Any]", value).items():
        if not _is_integer(token, 0, None):
            raise InvalidSamplingError(field.name, token, "keyed by token ids, integers >= 0")
        if not _is_number(bias, -100, 100):
            raise InvalidSamplingError(field.name, bias, "made of numbers from -100 to 100")
        biases[operator.index(token)] = float(bias)
    return MappingProxyType(biases)


def _stop_strings(value: Any, field: Field) -> tuple[str, ...]:
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, list | tuple) or len(value) > MAX_STOP_STRINGS:
        expected = f"a string or a sequence of at most {MAX_STOP_STRINGS} strings"
        raise InvalidSamplingError(field.name, value, expected)
    for text in cast("Sequence[Any]", value):
        if not isinstance(text, str) or not text:
            raise InvalidSamplingError(field.name, text, "made of non-empty strings")
    return tuple(str.__str__(text) for text in cast("Sequence[str]", value))


@attrs.frozen(kw_only=True)
class SamplingParams:
    """The sampling parameters and stop rules of a request.

    Attributes:
        max_tokens: Most tokens to generate; None: until the context is full.
        temperature: Divides the logits; 0 takes the most likely token.
        top_p: Keep the most likely tokens until their probabilities reach this sum.
        top_k: Keep this number of most likely tokens; 0 keeps all tokens.
        min_p: Drop tokens whose probability is below this fraction of the largest one.
        repetition_penalty: Divides positive logits, and multiplies other logits, of tokens in
            the prompt or the output.
        presence_penalty: Subtracted once from the logit of each token in the output.
        frequency_penalty: Subtracted from the logit of a token once per occurrence in the
            output.
        logit_bias: Token id -> value that is added to the token's logit.
        logprobs: Number of most likely tokens to report per position, beside the
            log-probability of the sampled token; 0 reports no log-probabilities.
        seed: Seed of the random stream; None uses a random seed.
        stop: Texts that end the output; a single string is accepted.
        ignore_eos: Whether generation continues after an end-of-sequence token.

    Raises:
        InvalidSamplingError: A value is out of range or has the wrong type.
        RequestError: A value of a caller's class cannot be read.
    """

    max_tokens: int | None = _field(_integer(1, or_none=True), default=256)
    temperature: float = _field(_number(0, 100), default=0.0)
    top_p: float = _field(_number(0, 1), default=1.0)
    top_k: int = _field(_integer(0), default=0)
    min_p: float = _field(_number(0, 1), default=0.0)
    repetition_penalty: float = _field(_number(0.01, 100), default=1.0)
    presence_penalty: float = _field(_number(-2, 2), default=0.0)
    frequency_penalty: float = _field(_number(-2, 2), default=0.0)
    logit_bias: Mapping[int, float] = _field(_biases, factory=dict, hash=False)
    logprobs: int = _field(_integer(0, MAX_LOGPROBS), default=0)
    seed: int | None = _field(_integer(0, 2**64 - 1, or_none=True), default=None)
    stop: tuple[str, ...] = _field(_stop_strings, default=())
    ignore_eos: bool = _field(_boolean, default=False)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken, without a random draw."""
        return self.temperature == 0 or self.top_p == 0 or self.top_k == 1

    @property
    def penalised(self) -> bool:
        """Whether a penalty depends on earlier tokens."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse biases on token ids beyond the vocabulary.

        Raises:
            InvalidSamplingError: A token id of `logit_bias` is too large.
        """
        for token in self.logit_bias:
            if token >= vocab_size:
                expected = f"keyed by token ids below {vocab_size}"
                raise InvalidSamplingError("logit_bias", token, expected)
