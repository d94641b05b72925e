"""Taps: what a step asks for is collected, and what nobody asks for costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from neve.contract.forward import FINAL, Segment, StepBatch, Tap
from neve.layers.decoder import DecoderModel, Trunk, run_layers
from neve.layers.norms import RMSNorm
from neve.layers.stream import Stream
from neve.layers.taps import Taps
from neve.metal.runtime import launch
from neve.testing.kernels import emulator

pytestmark = pytest.mark.mlx

DIMS, VOCAB, NUM_TOKENS = 64, 32, 6

needs_compiler = pytest.mark.skipif(
    emulator.compiler() is None, reason="no C++ compiler to build kernels for the host"
)


class Doubling(nn.Module):
    """A layer that adds what it gets, or its norm, as a sum that is not computed yet."""

    def __init__(self, *, normed: bool) -> None:
        super().__init__()
        self._after = RMSNorm(DIMS, eps=1e-5) if normed else None

    def __call__(self, stream: Stream, context: Any) -> Stream:
        return stream.add(stream.computed(), after=self._after)

    def formula(self, x: mx.array) -> mx.array:
        return x + (x if self._after is None else self._after(x))


LAYERS = [Doubling(normed=False), Doubling(normed=True), Doubling(normed=False)]
NORM = RMSNorm(DIMS, eps=1e-5)
CONTEXT: Any = None


def step(
    logit_rows: Sequence[int] = (5,), taps: Sequence[Tap] = (), rows: Sequence[int] = (1, 3)
) -> StepBatch:
    return StepBatch(
        mx.arange(NUM_TOKENS),
        mx.arange(NUM_TOKENS),
        (Segment(0, NUM_TOKENS, 0),),
        (),
        mx.array([*logit_rows], mx.int32),
        tuple(taps),
        mx.array([*rows], mx.int32) if taps else None,
    )


def embeddings() -> mx.array:
    return mx.random.normal((NUM_TOKENS, DIMS), key=mx.random.key(0))


def streams() -> list[mx.array]:
    """Return the stream behind each layer, by the formulas."""
    x, found = embeddings(), []
    for layer in LAYERS:
        x = layer.formula(x)
        found.append(x)
    return found


@pytest.mark.parametrize("rows", [(1, 3), (5,), tuple(range(NUM_TOKENS))])
def test_a_tap_is_the_stream_behind_its_layer(rows: Sequence[int]) -> None:
    """FW-2: of any layer, whether its last sum is computed or not, and of any rows."""
    taps = [Tap(0), Tap(1), Tap(2), FINAL]
    readout = run_layers(embeddings(), LAYERS, NORM, step(taps=taps, rows=rows), CONTEXT)

    for layer, stream in enumerate(streams()):
        np.testing.assert_allclose(readout.hidden[Tap(layer)], stream[[*rows]], rtol=1e-6)
    final = NORM(streams()[-1][mx.array([*rows])])
    np.testing.assert_allclose(readout.hidden[FINAL], final, rtol=1e-5, atol=1e-6)
    assert set(readout.hidden) == set(taps)


def test_taps_leave_the_wanted_rows_alone() -> None:
    """FW-2: what enters the head is the same with taps and without."""
    plain = run_layers(embeddings(), LAYERS, NORM, step(), CONTEXT)
    tapped = run_layers(embeddings(), LAYERS, NORM, step(taps=[Tap(1), FINAL]), CONTEXT)

    assert mx.array_equal(plain.rows, tapped.rows)
    assert plain.hidden == {}


def test_a_step_without_taps_computes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """FW-2: no row is picked and no sum is made that the layers do not need."""
    picked: list[mx.array] = []
    rows = Stream.rows
    monkeypatch.setattr(Stream, "rows", lambda s, r: picked.append(r) or rows(s, r))
    run_layers(embeddings(), LAYERS, NORM, step(), CONTEXT)

    assert picked == []


def test_the_final_rows_are_normed_once_if_they_are_those_of_the_head() -> None:
    """FW-2: a drafter that reads the head's rows shares them."""
    batch = step(logit_rows=(2, 4), taps=[FINAL])
    batch = StepBatch(
        batch.ids,
        batch.positions,
        batch.segments,
        (),
        batch.logit_rows,
        batch.taps,
        batch.logit_rows,
    )
    readout = run_layers(embeddings(), LAYERS, NORM, batch, CONTEXT)

    assert readout.hidden[FINAL] is readout.rows


@pytest.mark.parametrize(
    ("taps", "reached"),
    [((), False), ((Tap(0),), False), ((Tap(2),), True), ((FINAL,), True)],
)
def test_taps_say_whether_they_read_the_last_layers(taps: Sequence[Tap], reached: bool) -> None:
    """FW-2: a trunk that computes some rows only from a layer on has to know."""
    assert Taps(step(taps=taps)).beyond(1) is reached


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_answers_with_logits_and_hidden_states(tied: bool) -> None:
    """FW-2: by a head of its own or by the embedding; without rows there are no logits."""
    model = DecoderModel(Trunk(VOCAB, DIMS, LAYERS, NORM), tied=tied)
    weight = (model.model.embed_tokens if tied else model.lm_head).weight
    output = model(step(logit_rows=(0, 5), taps=[FINAL], rows=(0, 5)), CONTEXT)
    silent = model(step(logit_rows=(), taps=[Tap(2)]), CONTEXT)

    assert output.logits is not None
    expected = output.hidden[FINAL] @ weight.T
    np.testing.assert_allclose(output.logits, expected, rtol=1e-5, atol=1e-5)
    assert silent.logits is None
    assert silent.hidden[Tap(2)].shape == (2, DIMS)


@needs_compiler
def test_kernels_tap_the_same_stream() -> None:
    """FW-2, PK-1: sums that a kernel makes with the norm behind them are read like others."""
    taps = [Tap(0), Tap(1), FINAL]
    plain = run_layers(embeddings(), LAYERS, NORM, step(taps=taps), CONTEXT)
    with launch.using(emulator.HostBackend(orders=(0,))):
        kernels = run_layers(embeddings(), LAYERS, NORM, step(taps=taps), CONTEXT)
        mx.eval(kernels.rows, *kernels.hidden.values())

    for tap in taps:
        np.testing.assert_allclose(kernels.hidden[tap], plain.hidden[tap], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{"taps": (Tap(0),)}, {"hidden_rows": mx.array([0])}],
    ids=["no rows", "no taps"],
)
def test_taps_and_their_rows_come_together(changes: dict[str, Any]) -> None:
    """FW-2: one without the other is refused where the step is made."""
    batch = step()
    with pytest.raises(ValueError, match="taps and hidden_rows"):
        StepBatch(batch.ids, batch.positions, batch.segments, (), batch.logit_rows, **changes)


@pytest.mark.parametrize("shape", [(NUM_TOKENS,), (2, NUM_TOKENS), (3, NUM_TOKENS - 1)])
def test_rotary_positions_have_one_axis_or_three(shape: tuple[int, ...]) -> None:
    """FW-2: another shape is refused where the step is made."""
    batch, rope = step(), mx.zeros(shape, mx.int32)
    with pytest.raises(ValueError, match=r"rope_positions must be \[1, 6\] or \[3, 6\]"):
        StepBatch(
            batch.ids,
            batch.positions,
            batch.segments,
            (),
            batch.logit_rows,
            rope_positions=rope,
        )
