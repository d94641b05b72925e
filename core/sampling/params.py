"""What a request may ask of the sampler. Pure values: building one validates it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import attrs

from ..errors import InvalidSamplingError

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16

Field: TypeAlias = "attrs.Attribute[Any]"
Validator: TypeAlias = Callable[[Any, Field, Any], None]


def _is_number(value: object, low: float, high: float) -> bool:
    # a bool is an int to Python, and NaN fails every comparison
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    )


def _is_integer(value: object, low: int, high: int | None) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return low <= value and (high is None or value <= high)


def _number(low: float, high: float) -> Validator:
    def check(_: Any, field: Field, value: object) -> None:
        if not _is_number(value, low, high):
            raise InvalidSamplingError(field.name, value, f"a number from {low} to {high}")

    return check


def _integer(low: int, high: int | None = None, *, or_none: bool = False) -> Validator:
    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
    expected = f"an integer {bounds}" + (" or None" if or_none else "")

    def check(_: Any, field: Field, value: object) -> None:
        if not (_is_integer(value, low, high) or (or_none and value is None)):
            raise InvalidSamplingError(field.name, value, expected)

    return check


def _boolean(_: Any, field: Field, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidSamplingError(field.name, value, "True or False")


def _frozen_mapping(value: Mapping[int, float]) -> Mapping[int, float]:
    # a private copy; what is no mapping goes on to the validator
    is_mapping = isinstance(cast("object", value), Mapping)
    return MappingProxyType(dict(value)) if is_mapping else value


def _biases(_: Any, field: Field, value: object) -> None:
    if not isinstance(value, Mapping):
        raise InvalidSamplingError(field.name, value, "a mapping of token ids to biases")
    for token, bias in value.items():
        if not _is_integer(token, 0, None):
            raise InvalidSamplingError(field.name, token, "keyed by token ids, integers >= 0")
        if not _is_number(bias, -100, 100):
            raise InvalidSamplingError(field.name, bias, "made of numbers from -100 to 100")


def _string_tuple(value: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    # what is neither list nor tuple goes on to the validator
    return tuple(value) if isinstance(value, list) else cast("tuple[str, ...]", value)


def _stop_strings(_: Any, field: Field, value: object) -> None:
    if not isinstance(value, tuple) or len(value) > MAX_STOP_STRINGS:
        expected = f"a string or a sequence of at most {MAX_STOP_STRINGS} strings"
        raise InvalidSamplingError(field.name, value, expected)
    for text in value:
        if not isinstance(text, str) or not text:
            raise InvalidSamplingError(field.name, text, "made of non-empty strings")


@attrs.frozen(kw_only=True)
class SamplingParams:
    """How one request turns logits into tokens, and when it ends.

    Attributes:
        max_tokens: Most tokens to generate; None means until the context is full.
        temperature: Divides the logits; 0 takes the most likely token.
        top_p: Keep the most likely tokens until their probabilities reach this sum.
        top_k: Keep this many tokens; 0 keeps all.
        min_p: Drop tokens less likely than this share of the most likely one.
        repetition_penalty: Divides positive and multiplies other logits of tokens that the
            prompt or the output holds.
        presence_penalty: Subtracted once from the logit of a token that the output holds.
        frequency_penalty: Subtracted once for each time that the output holds a token.
        logit_bias: Token id -> what is added to its logit.
        logprobs: Alternatives to report at every position, beside the sampled token and its
            own log-probability; 0 reports none of it.
        seed: Makes the draws repeatable; None draws a fresh one.
        stop: Texts that end the output; a single string is accepted.
        ignore_eos: Go on after an end-of-sequence token.

    Raises:
        InvalidSamplingError: A value is out of range or of the wrong type.
    """

    max_tokens: int | None = attrs.field(default=256, validator=_integer(1, or_none=True))
    temperature: float = attrs.field(default=0.0, validator=_number(0, 100))
    top_p: float = attrs.field(default=1.0, validator=_number(0, 1))
    top_k: int = attrs.field(default=0, validator=_integer(0))
    min_p: float = attrs.field(default=0.0, validator=_number(0, 1))
    repetition_penalty: float = attrs.field(default=1.0, validator=_number(0.01, 100))
    presence_penalty: float = attrs.field(default=0.0, validator=_number(-2, 2))
    frequency_penalty: float = attrs.field(default=0.0, validator=_number(-2, 2))
    logit_bias: Mapping[int, float] = attrs.field(
        factory=dict, converter=_frozen_mapping, validator=_biases, hash=False
    )
    logprobs: int = attrs.field(default=0, validator=_integer(0, MAX_LOGPROBS))
    seed: int | None = attrs.field(default=None, validator=_integer(0, 2**64 - 1, or_none=True))
    stop: tuple[str, ...] = attrs.field(
        default=(), converter=_string_tuple, validator=_stop_strings
    )
    ignore_eos: bool = attrs.field(default=False, validator=_boolean)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken, so that nothing is drawn."""
        return self.temperature == 0 or self.top_p == 0 or self.top_k == 1

    @property
    def penalised(self) -> bool:
        """Whether the logits depend on which tokens came before."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse biases on tokens that a vocabulary of `vocab_size` does not have.

        Raises:
            InvalidSamplingError: A token id of `logit_bias` is too large.
        """
        for token in self.logit_bias:
            if token >= vocab_size:
                expected = f"keyed by token ids below {vocab_size}"
                raise InvalidSamplingError("logit_bias", token, expected)
