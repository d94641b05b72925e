"""Recording of a reference's answers as the goldens of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .golden import GOLDEN_NAME, LOGITS_NAME, GoldenAnswer

Reference: TypeAlias = Callable[[Sequence[int]], npt.ArrayLike]
"""Token ids of one sequence -> logits `[T, V]`, float32, by another implementation."""

NUM_POSITIONS = 32
"""Bound on a prompt's positions with stored logits: its last positions."""


def record_goldens(
    folder: Path,
    prompts: Mapping[str, Sequence[int]],
    reference: Reference,
    *,
    max_new: int = 24,
    end_ids: Collection[int] = (),
) -> None:
    """Write `golden.json` and `logits.npz` beside a checkpoint's weights.

    Args:
        folder: The checkpoint's folder.
        prompts: Name -> token ids.
        reference: Computes the checkpoint's logits in float32.
        max_new: Upper bound of an answer's tokens.
        end_ids: Token ids that end an answer.

    Raises:
        ValueError: The reference's logits are not `[T, V]`.
    """
    entries: list[dict[str, object]] = []
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for name, ids in prompts.items():
        logits = _logits(reference, ids)
        positions = np.arange(max(0, len(ids) - NUM_POSITIONS), len(ids), dtype=np.int32)
        arrays |= {f"{name}.positions": positions, f"{name}.logits": logits[positions]}
        answer = _greedy(reference, ids, max_new, end_ids)
        f32 = {"tokens": list(answer.tokens), "margins": list(answer.margins)}
        entries.append({"id": name, "ids": list(ids), "max_new": max_new, "f32": f32})
    text = json.dumps({"prompts": entries}, indent=1)
    (folder / GOLDEN_NAME).write_text(text, encoding="utf-8")
    np.savez_compressed(folder / LOGITS_NAME, allow_pickle=False, **arrays)


def _logits(reference: Reference, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    logits = np.asarray(reference(list(ids)), np.float32)
    if logits.ndim != 2 or logits.shape[0] != len(ids):
        raise ValueError(f"logits must be [{len(ids)}, V], the reference gave {logits.shape}")
    return logits


def _greedy(
    reference: Reference, ids: Sequence[int], max_new: int, end_ids: Collection[int]
) -> GoldenAnswer:
    tokens: list[int] = []
    margins: list[float] = []
    while len(tokens) < max_new:
        last = _logits(reference, [*ids, *tokens])[-1]
        second, best = np.argsort(last)[-2:]
        tokens.append(int(best))
        margins.append(float(last[best] - last[second]))
        if tokens[-1] in end_ids:
            break
    return GoldenAnswer(tuple(tokens), tuple(margins))
