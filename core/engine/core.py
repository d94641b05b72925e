"""What the engine thread owns, and what is known about it from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs

from ..catalogue import Family
from ..coldtier.admission.allowlist import PersistDecision
from ..contract.plan import OutputProtocol
from ..scheduler.scheduler import Scheduler
from ..settings import Settings
from ..text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .cold import EngineCold
    from .journal import Journal
    from .runner import Runner


@attrs.frozen(kw_only=True, eq=False)
class ModelInfo:
    """What loading found out about a model.

    Attributes:
        source: What `load` was given.
        family: The family that runs it.
        config: The family's config.
        model_type: What config.json calls the model.
        tokenizer: Between text and ids.
        protocol: How its output is written.
        eos_token_ids: Token ids that end an answer.
        settings: The settings in force.
        max_context: Positions that it can address.
        vocab_size: Width of the logits.
        dtype: Compute dtype.
        lane: The discipline of its requests.
        row_exact: Whether rows are computed one at a time.
        weight_bytes: Bytes of its parameters.
        initial_blocks: Blocks of the pools at load; 0 on the flat path.
        effective_window_tokens: The longest sequence that the largest pool holds.
        persistence: Whether prefixes go to disk and come back, and why.
    """

    source: str
    family: Family
    config: Any
    model_type: str
    tokenizer: Tokenizer
    protocol: OutputProtocol
    eos_token_ids: frozenset[int]
    settings: Settings
    max_context: int
    vocab_size: int
    dtype: str
    lane: Literal["paged", "flat"]
    row_exact: bool
    weight_bytes: int
    initial_blocks: int
    effective_window_tokens: int
    persistence: PersistDecision


@attrs.frozen(eq=False)
class Core:
    """A model that is ready to run; every array below it belongs to the engine thread.

    Attributes:
        info: What loading found out.
        scheduler: Who runs.
        runner: How.
        cold: The cold tier; None without one.
        journal: What is written down about requests.
    """

    info: ModelInfo
    scheduler: Scheduler
    runner: Runner
    cold: EngineCold | None
    journal: Journal
