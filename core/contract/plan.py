"""Small values that a family returns about itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import attrs

HOOKSPEC_VERSION = 2
"""Version of the hook specification; a plugin states the version that it implements."""


def _names(values: Iterable[str]) -> tuple[str, ...]:
    # iteration over a lone string would yield its letters
    if isinstance(values, str):
        raise TypeError(f"model_types must be a sequence of strings, got {values!r}")
    return tuple(values)


@attrs.frozen
class FamilyInfo:
    """A family's identity.

    Attributes:
        name: The family's name, unique among installed plugins.
        hookspec_version: The `HOOKSPEC_VERSION` that the plugin was written for.
        model_types: Values of `model_type` in config.json that the family serves.
        distribution: The distribution that contains the plugin, for messages.
        state_version: Version of the keys, values and states that `forward` writes. Raise the
            number when the same weights and tokens give other values: older objects on disk
            are then not restored.
    """

    name: str
    hookspec_version: int
    model_types: tuple[str, ...] = attrs.field(converter=_names)
    distribution: str
    state_version: int = 1


@attrs.frozen
class ModelShape:
    """Figures of a parsed config that the engine needs from every family.

    Attributes:
        vocab_size: Width of the logits.
        max_context: Positions that the model supports, in tokens.
        num_layers: Layers, in the order of the cache routes.
    """

    vocab_size: int
    max_context: int
    num_layers: int


@attrs.frozen
class ExecutionPlan:
    """Execution settings that a family asks for.

    Attributes:
        paged: The family supports the block-paged cache, which is then the default.
        row_exact: Models whose decode rows run one at a time, so that a row's logits do not
            depend on other rows: none, quantised checkpoints, or all. Settings override it.
        prefill_chunk: Prefill slices end on multiples of this many tokens; None means that
            every slicing gives the same result up to rounding.
        spill: Blocks of a preempted request may be written to the cold tier first, where
            measurements show a restore to be faster than recomputing.
    """

    paged: bool = True
    row_exact: Literal["never", "quantized", "always"] = "never"
    prefill_chunk: int | None = None
    spill: bool = True


@attrs.frozen
class ColdEligibility:
    """Whether a prefix of this family may be restored from disk.

    Attributes:
        eligible: True if blocks and sidecars on disk hold the whole cache of a prefix; the
            restart-parity gate has to confirm the claim.
        reason: One sentence.
    """

    eligible: bool
    reason: str


@attrs.frozen
class OutputProtocol:
    """The marks in a family's output that delimit turns, reasoning and tool calls.

    Attributes:
        end_of_turn: Token texts that end an answer, beside the checkpoint's own
            end-of-sequence ids; texts missing from the vocabulary are ignored.
        reasoning: Opening and closing mark of a reasoning part, or None.
        tool_call: Opening and closing mark of a tool call, or None.
    """

    end_of_turn: tuple[str, ...] = ()
    reasoning: tuple[str, str] | None = None
    tool_call: tuple[str, str] | None = None
