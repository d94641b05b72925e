"""Commands from other threads to the engine thread."""

from __future__ import annotations

import operator
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import attrs

from ..arguments import instance, reading, text
from ..contract.prompt import Prompt
from ..ids import RequestId, SaltDomain
from ..sampling.params import SamplingParams
from .core import Core
from .handles import Handle


def _prompt(value: object) -> Prompt:
    return instance("prompt", value, Prompt, "a prompt")


def _params(value: object) -> SamplingParams:
    return instance("params", value, SamplingParams, "sampling parameters")


def _salt(value: Any) -> SaltDomain:
    with reading("cache_salt"):
        return SaltDomain(operator.index(value))


@attrs.frozen(eq=False)
class Submit:
    """Run a prompt.

    Fields are converted and checked on the caller's thread.

    Raises:
        RequestError: A field has the wrong type.
    """

    handle: Handle
    prompt: Prompt = attrs.field(converter=_prompt)
    params: SamplingParams = attrs.field(converter=_params)
    salt: SaltDomain = attrs.field(converter=_salt)
    submitted_at: float
    owner: str = attrs.field(default="", converter=partial(text, "owner"))


@attrs.frozen
class Cancel:
    """Stop a request."""

    request_id: RequestId


@attrs.frozen(eq=False)
class Call:
    """Run a function between two steps and set its result on a future."""

    function: Callable[[Core], Any]
    future: Future[Any] = attrs.field(factory=Future)


@attrs.frozen
class Close:
    """End the loop. Unfinished requests fail with `EngineClosedError`."""
