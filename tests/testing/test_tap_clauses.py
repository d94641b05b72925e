"""The clauses about hidden states, on families with a planted fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from neve.catalogue import Family
from neve.contract.forward import FINAL, ForwardOutput, Tap
from neve.metal.runtime import dispatch, launch
from neve.testing import tap_clauses
from neve.testing.kernels import emulator
from neve.testing.subject import Subject
from neve.testing.tap_clauses import TapClauses, TappedModel, layers_of, rises_with, watched

pytestmark = pytest.mark.mlx

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "qwen3"
clauses = TapClauses()


@pytest.fixture(scope="module")
def tapped() -> TappedModel:
    """A family without faults."""
    return TappedModel.of(Subject.of("qwen3", CHECKPOINT))


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let `fake(output)` change what a forward with taps returns."""
    real = Family.forward

    def planted(fake: Callable[[ForwardOutput], ForwardOutput]) -> None:
        def forward(self: Family, model: Any, batch: Any, context: Any) -> ForwardOutput:
            output = real(self, model, batch, context)
            return fake(output) if batch.taps else output

        monkeypatch.setattr(Family, "forward", forward)

    return planted


def of_the_layer_before(output: ForwardOutput) -> ForwardOutput:
    hidden = {t: output.hidden[Tap(max(0, (t.layer or 1) - 1))] for t in output.hidden}
    return attrs.evolve(output, hidden=hidden | {FINAL: output.hidden[FINAL]})


def of_other_rows(output: ForwardOutput) -> ForwardOutput:
    return attrs.evolve(output, hidden={t: mx.roll(x, 1, 0) for t, x in output.hidden.items()})


def final_without_its_norm(output: ForwardOutput) -> ForwardOutput:
    last = max(t.layer for t in output.hidden if t.layer is not None)
    return attrs.evolve(output, hidden={**output.hidden, FINAL: output.hidden[Tap(last)]})


@pytest.mark.parametrize("fake", [of_the_layer_before, of_other_rows, final_without_its_norm])
@pytest.mark.parametrize("path", ["flat", "paged"])
def test_hidden_states_of_another_place_are_found(
    tapped: TappedModel, plant: Callable[..., None], fake: Callable[..., Any], path: str
) -> None:
    """FW-6: a layer too early, rows that are not asked for, or no final norm."""
    plant(fake)
    with pytest.raises(AssertionError):
        clauses.test_taps(tapped, path)


def test_taps_that_change_logits_are_found(
    tapped: TappedModel, plant: Callable[..., None]
) -> None:
    """FW-6: one part in a thousand is too much."""

    def scaled(output: ForwardOutput) -> ForwardOutput:
        assert output.logits is not None
        return attrs.evolve(output, logits=output.logits * 1.001)

    plant(scaled)
    with pytest.raises(AssertionError):
        clauses.test_taps_change_no_logit(tapped)


@pytest.mark.skipif(emulator.compiler() is None, reason="no g++: kernels cannot run here")
@pytest.mark.parametrize("name", ["qwen3", "lfm2"])
def test_taps_are_read_between_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FW-2, PK-1: streams whose sums and norms are one launch give the same hidden states."""
    monkeypatch.setattr(tap_clauses, "NUM_TOKENS", 20)
    tapped = TappedModel.of(Subject.of(name, CHECKPOINT.parent / name))
    with launch.using(emulator.HostBackend(orders=(0,))):
        clauses.test_taps(tapped, "paged")

    assert dispatch.counts()["add_rms_norm:host"] > 0


def test_a_model_without_a_list_of_layers_is_told(tapped: TappedModel) -> None:
    """FW-6: the sentence says what the suite looks for."""
    with pytest.raises(AssertionError, match="no list of modules has the model's 7 layers"):
        layers_of(nn.Linear(2, 2), 7)


def test_layers_are_as_before_after_they_were_watched() -> None:
    """FW-6: a model that was looked at computes on as it did."""
    layer = nn.Linear(2, 2)
    with watched([layer]) as streams:
        layer(mx.ones((1, 2)))
    layer(mx.ones((1, 2)))

    assert type(layer) is nn.Linear
    assert len(streams) == 1


def test_a_cap_leaves_the_order_of_scores() -> None:
    """FW-6: logits may be scaled and capped, and no more."""
    scores = np.array([3.0, -1.0, 0.5, 2.0], np.float32)

    assert rises_with(4 * np.tanh(scores / 4), scores)
    assert not rises_with(-scores, scores)
