"""Goldens: a reference implementation's answers for a checkpoint.

Goldens lie beside the weights. `golden.json` contains prompts with the reference's greedy
answers in float32. `logits.npz` contains the float32 logits of some of these prompts, under
`<id>.positions` `[P]` and `<id>.logits` `[P, V]`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import attrs
import numpy as np
import numpy.typing as npt

from ..errors import CheckpointError, SettingsError
from ..structuring import strict_converter, structure

GOLDEN_NAME = "golden.json"
LOGITS_NAME = "logits.npz"

_CONVERTER = strict_converter(forbid_extra_keys=False)


@attrs.frozen
class GoldenAnswer:
    """A greedy answer.

    Attributes:
        tokens: Token ids, including a final end-of-sequence token.
        margins: Distance of each token's logit from the second best logit.
    """

    tokens: tuple[int, ...]
    margins: tuple[float, ...]


@attrs.frozen
class GoldenPrompt:
    """A prompt with the reference's answer.

    Attributes:
        id: Name of the prompt.
        ids: Token ids of the prompt.
        max_new: Upper bound of the answer's tokens.
        f32: The answer in float32.
    """

    id: str
    ids: tuple[int, ...]
    max_new: int
    f32: GoldenAnswer


@attrs.frozen(eq=False)
class GoldenLogits:
    """The reference's logits at some positions of a prompt.

    Attributes:
        positions: `[P]`, int32.
        logits: `[P, V]`, float32.
    """

    positions: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32]


@attrs.frozen(eq=False)
class Goldens:
    """All goldens of a checkpoint.

    Attributes:
        prompts: Prompts, in the order of the file.
        logits: Prompt id -> logits.
    """

    prompts: tuple[GoldenPrompt, ...]
    logits: Mapping[str, GoldenLogits]

    def prompt(self, prompt_id: str) -> GoldenPrompt:
        """Return the prompt of a given name.

        Raises:
            KeyError: No prompt has this name.
        """
        return {prompt.id: prompt for prompt in self.prompts}[prompt_id]


@attrs.frozen
class _File:
    prompts: tuple[GoldenPrompt, ...]


def _read_prompts(path: Path) -> tuple[GoldenPrompt, ...]:
    try:
        return structure(json.loads(path.read_bytes()), _File, _CONVERTER).prompts
    except SettingsError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path}: is not JSON: {error}") from error


def _read_logits(path: Path) -> Mapping[str, GoldenLogits]:
    if not path.exists():
        return MappingProxyType({})
    with np.load(path) as stored:
        ids = [name.removesuffix(".logits") for name in stored if name.endswith(".logits")]
        return MappingProxyType(
            {i: GoldenLogits(stored[f"{i}.positions"], stored[f"{i}.logits"]) for i in ids}
        )


def read_goldens(checkpoint: Path) -> Goldens | None:
    """Return the goldens of a checkpoint folder; None without a golden.json.

    Raises:
        CheckpointError: golden.json is malformed.
    """
    path = checkpoint / GOLDEN_NAME
    if not path.is_file():
        return None
    return Goldens(_read_prompts(path), _read_logits(checkpoint / LOGITS_NAME))
