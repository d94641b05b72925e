"""Small answers that a family gives about itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import attrs

HOOKSPEC_VERSION = 2
"""Version of the hook specification; a plugin states the one it was written for."""


def _names(values: Iterable[str]) -> tuple[str, ...]:
    # a lone string would be taken apart into letters
    if isinstance(values, str):
        raise TypeError(f"model_types must be a sequence of strings, got {values!r}")
    return tuple(values)


@attrs.frozen
class FamilyInfo:
    """Who a family is.

    Attributes:
        name: The family's name, unique among installed plugins.
        hookspec_version: The `HOOKSPEC_VERSION` that the plugin was written for.
        model_types: Values of `model_type` in config.json that it answers for.
        distribution: The distribution that brings it, for messages.
        state_version: Version of what its `forward` writes into the cache. Raise it when the
            same weights and tokens come to give other keys, values or state: what is on disk
            is then not restored.
    """

    name: str
    hookspec_version: int
    model_types: tuple[str, ...] = attrs.field(converter=_names)
    distribution: str
    state_version: int = 1


@attrs.frozen
class ModelShape:
    """What the engine needs to know of a parsed config, whatever the family.

    Attributes:
        vocab_size: Width of the logits.
        max_context: Positions that the model was made for, in tokens.
        num_layers: Layers, in the order of the cache routes.
    """

    vocab_size: int
    max_context: int
    num_layers: int


@attrs.frozen
class ExecutionPlan:
    """How a family wants to be run.

    Attributes:
        paged: It may run on the block-paged cache, and does so unless told otherwise.
        row_exact: When decode rows run one at a time, so that a row's logits do not depend
            on the others: never, for quantised checkpoints, or always. Settings override it.
        prefill_chunk: Prefill cuts lie on multiples of this many tokens; None means that
            any cut gives the same result up to rounding.
        spill: A preempted turn's blocks may be written to the cold tier first, when that
            is measured to be faster than to compute them again.
    """

    paged: bool = True
    row_exact: Literal["never", "quantized", "always"] = "never"
    prefill_chunk: int | None = None
    spill: bool = True


@attrs.frozen
class ColdEligibility:
    """Whether a prefix of this family may come back from disk.

    Attributes:
        eligible: True if what it writes to disk is all that a prefix leaves behind; the
            restart-parity gate has to confirm it.
        reason: One sentence.
    """

    eligible: bool
    reason: str


@attrs.frozen
class OutputProtocol:
    """How a family's models write what is not plain text.

    Attributes:
        end_of_turn: Token texts that end an answer beside the checkpoint's own
            end-of-sequence ids; those missing from the vocabulary are ignored.
        reasoning: Opening and closing mark of a reasoning part, or None.
        tool_call: Opening and closing mark of a tool call, or None.
    """

    end_of_turn: tuple[str, ...] = ()
    reasoning: tuple[str, str] | None = None
    tool_call: tuple[str, str] | None = None
