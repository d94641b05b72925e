"""The options of a request, checked on the caller's thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ..arguments import reading
from ..errors import RequestError
from ..sampling.params import SamplingParams
from ..text.messages import check_tools
from ..text.prompt import check_template_kwargs


def read_sampling(options: Mapping[str, Any], *, vocab_size: int) -> SamplingParams:
    """Return the sampling parameters of options.

    Args:
        options: Fields of `SamplingParams`.
        vocab_size: Width of the logits.

    Raises:
        RequestError: An option is unknown, of the wrong type, or out of range.
    """
    known = [field.name for field in attrs.fields(SamplingParams)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise RequestError(
            f"{unknown[0]} is no parameter of a request (known: {', '.join(known)})",
            code="unknown_parameter",
            param=unknown[0],
        )
    params = SamplingParams(**options)
    params.check_vocabulary(vocab_size)
    return params


def check_options(options: Mapping[str, Any], *, vocab_size: int) -> None:
    """Refuse options of a conversation that no turn could use.

    Args:
        options: Fields of `SamplingParams`, `tools` and `template_kwargs`.
        vocab_size: Width of the logits.

    Raises:
        RequestError: As `read_sampling`, or an argument of the chat template is malformed.
    """
    sampling = dict(options)
    with reading("tools"):
        check_tools(sampling.pop("tools", None))
    with reading("template_kwargs"):
        check_template_kwargs(sampling.pop("template_kwargs", None))
    read_sampling(sampling, vocab_size=vocab_size)
