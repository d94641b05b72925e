"""The parts of a loaded model, and its description for other threads."""

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
    """Facts about a loaded model.

    Attributes:
        source: The argument of `load`.
        family: The model's family.
        config: The family's config.
        model_type: The model type in config.json.
        tokenizer: The model's tokenizer.
        protocol: The format of the model's output.
        eos_token_ids: Token ids that end an answer.
        settings: The settings in force.
        max_context: Most positions of a sequence.
        vocab_size: Width of the logits.
        dtype: Compute dtype.
        lane: The cache implementation: `paged` or `flat`.
        row_exact: Whether rows are computed one at a time.
        weight_bytes: Bytes of the parameters.
        initial_blocks: Blocks of the pools at load; 0 on the flat path.
        effective_window_tokens: Length in tokens of the longest sequence that fully grown
            pools hold.
        persistence: Whether prefixes are kept on disk, with the reason.
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
    """The parts of a loaded model. All their arrays belong to the engine thread.

    Attributes:
        info: Facts about the model.
        scheduler: Plans steps.
        runner: Builds the graphs of steps.
        cold: The cold tier; None without one.
        journal: Writes records of requests.
    """

    info: ModelInfo
    scheduler: Scheduler
    runner: Runner
    cold: EngineCold | None
    journal: Journal
