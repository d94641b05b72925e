"""What other threads ask of the engine thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import attrs

from ..contract.prompt import Prompt
from ..ids import RequestId, SaltDomain
from ..sampling.params import SamplingParams
from .core import Core
from .handles import Handle


@attrs.frozen(eq=False)
class Submit:
    """Run a prompt."""

    handle: Handle
    prompt: Prompt
    params: SamplingParams
    salt: SaltDomain
    submitted_at: float
    owner: str = ""


@attrs.frozen
class Cancel:
    """Stop a request."""

    request_id: RequestId


@attrs.frozen(eq=False)
class Call:
    """Run a function between two steps and give its result to a future."""

    function: Callable[[Core], Any]
    future: Future[Any] = attrs.field(factory=Future)


@attrs.frozen
class Close:
    """End the loop; requests that still run fail with `EngineClosedError`."""
