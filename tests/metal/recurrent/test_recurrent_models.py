"""Trained tiny checkpoints, their recurrences run by kernels on the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import neve
from neve.metal.runtime import dispatch, launch
from neve.testing.golden import read_goldens
from neve.testing.kernels import emulator
from neve.testing.kernels.emulator import HostBackend
from neve.testing.parity import LOGIT_TOLERANCE, differs_at, logit_distance

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(emulator.compiler() is None, reason="no C++ compiler builds bodies"),
]

CHECKPOINTS = Path(__file__).parents[3] / "checkpoints"
NEW_TOKENS = 4


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("qwen3_5", {"short_conv", "gated_delta", "gated_rms_norm"}),
        ("nemotron_h", {"short_conv", "mamba2", "gated_group_norm"}),
        ("lfm2", {"short_conv"}),
    ],
)
def test_goldens_hold_on_kernels(name: str, kernels: set[str]) -> None:
    """PK-1, FW-8: a prefill and some steps answer as the reference implementation does."""
    goldens = read_goldens(CHECKPOINTS / name)
    assert goldens is not None
    prompt = goldens.prompt("recall_mid")
    expected = goldens.logits["recall_mid"]
    before = dispatch.counts()
    with (
        launch.using(HostBackend(checked=False, orders=(0,))),
        neve.load(CHECKPOINTS / name, dtype="float32", paged_cache_memory_mb=8) as model,
    ):
        logits = np.array(model.logits(list(prompt.ids)))
        answer = model.generate(list(prompt.ids), max_tokens=NEW_TOKENS).tokens

    assert logit_distance(logits[expected.positions], expected.logits) < LOGIT_TOLERANCE
    assert differs_at([*answer, *prompt.f32.tokens[len(answer) :]], prompt.f32) is None
    for kernel in kernels:
        assert dispatch.counts()[f"{kernel}:host"] > before.get(f"{kernel}:host", 0)
        assert dispatch.counts().get(f"{kernel}:ops") == before.get(f"{kernel}:ops")
