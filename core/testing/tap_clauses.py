"""Clauses about hidden states: taps return the model's own, and change no logit."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
import pytest

from ..checkpoint.checkpoint import open_checkpoint
from ..contract.cache_spec import CacheLayout
from ..contract.forward import FINAL, ForwardOutput, Tap
from .direct import DirectRun
from .parity import LOGIT_TOLERANCE, logit_distance
from .subject import Subject

NUM_TOKENS = 40
EVERY = 3
"""Distance between the tokens of a slice whose hidden states are asked for."""

Floats = npt.NDArray[np.float32]


@attrs.frozen(eq=False)
class TappedModel:
    """A family's model in float32, with results for some tokens without taps.

    Attributes:
        subject: The family.
        model: The model.
        layout: Cache layout of the model.
        ids: The tokens.
        streams: The residual stream `[T, D]` behind each layer.
        logits: Logits `[T, V]`.
    """

    subject: Subject
    model: nn.Module
    layout: CacheLayout
    ids: Sequence[int]
    streams: Sequence[Floats]
    logits: Floats

    @classmethod
    def of(cls, subject: Subject) -> TappedModel:
        """Build the model and run its tokens once, recording the layers' outputs."""
        family, opened = subject.family, open_checkpoint(subject.path, dtype=mx.float32)
        config = family.parse_config(opened.config)
        model, layout = (
            family.build_model(config, opened.weights),
            family.declare_cache_groups(config),
        )
        shape = family.model_shape(config)
        ids = [(7 * i + 3) % min(shape.vocab_size, 251) for i in range(NUM_TOKENS)]
        run = DirectRun(family, model, layout, NUM_TOKENS, paged=False)
        with watched(layers_of(model, shape.num_layers)) as streams:
            output = run.step(ids, logits="all")
        return cls(subject, model, layout, ids, streams, np.array(output.logits))

    @property
    def taps(self) -> list[Tap]:
        """Every tap of the model."""
        return [*map(Tap, range(self.layout.num_layers)), FINAL]

    def run(self, *, paged: bool) -> DirectRun:
        """Begin a run at position 0."""
        family = self.subject.family
        return DirectRun(family, self.model, self.layout, NUM_TOKENS, paged=paged)

    def compare(self, output: ForwardOutput, rows: Sequence[int]) -> None:
        """Compare hidden states with the model's own; `rows` are positions of tokens."""
        for layer, stream in enumerate(self.streams):
            found = np.array(output.hidden[Tap(layer)])
            assert logit_distance(found, stream[[*rows]]) <= LOGIT_TOLERANCE, f"layer {layer}"
        final = np.array(output.hidden[FINAL])
        assert final.shape == (len(rows), self.streams[0].shape[1])
        scores = final @ np.array(self._head_weight()).T
        for row, position in enumerate(rows):
            assert rises_with(self.logits[position], scores[row]), f"final norm, row {position}"

    def _head_weight(self) -> mx.array:
        """Return the head's weight `[V, D]`: of a separate layer, or of the embedding."""
        shape = (self.logits.shape[1], self.streams[0].shape[1])
        for kind in (nn.Linear, nn.Embedding):
            for _, module in self.model.named_modules():
                if isinstance(module, kind) and module.weight.shape == shape:
                    return module.weight
        raise AssertionError(f"the model has no layer or embedding of shape {shape}")


def rises_with(logits: Floats, scores: Floats) -> bool:
    """Return whether logits grow with scores, whatever cap or factor lies between."""
    steps = np.diff(logits[np.argsort(scores)].astype(np.float64))
    return bool(steps.min() >= -LOGIT_TOLERANCE * np.ptp(logits))


def layers_of(model: nn.Module, num_layers: int) -> list[nn.Module]:
    """Return the layers of a model: its one list with a module for each layer."""
    for _, module in model.named_modules():
        for value in module.values():
            if isinstance(value, list) and len(value) == num_layers:
                return value
    raise AssertionError(f"no list of modules has the model's {num_layers} layers")


@contextmanager
def watched(layers: Sequence[nn.Module]) -> Generator[list[Floats]]:
    """Record the output of each layer, in the order of the calls."""
    kinds = [type(layer) for layer in layers]
    streams: list[Floats] = []
    for layer, kind in zip(layers, kinds, strict=True):

        def call(self: Any, *args: Any, _kind: Any = kind) -> Any:
            out = _kind.__call__(self, *args)
            stream = out if isinstance(out, mx.array) else out.computed()
            streams.append(np.array(stream.astype(mx.float32)))
            return out

        layer.__class__ = type(kind.__name__, (kind,), {"__call__": call})
    try:
        yield streams
    finally:
        for layer, kind in zip(layers, kinds, strict=True):
            layer.__class__ = kind


class TapClauses:
    """Clauses about hidden states."""

    @pytest.fixture(scope="module")
    @classmethod
    def tapped(cls, subject: Subject) -> TappedModel:
        """The model, with its results without taps."""
        return TappedModel.of(subject)

    @pytest.mark.parametrize("path", ["flat", "paged"])
    def test_taps(self, tapped: TappedModel, path: str) -> None:
        """FW-2: hidden states of each layer and the final norm, in a slice and a decode row."""
        run, last = tapped.run(paged=path == "paged"), NUM_TOKENS - 1
        rows = [*range(1, last, EVERY)]
        slice_ = run.step(tapped.ids[:-1], taps=tapped.taps, hidden_rows=rows)
        decode = run.step(tapped.ids[-1:], taps=tapped.taps, hidden_rows=[0])

        tapped.compare(slice_, rows)
        tapped.compare(decode, [last])
        for output, position in ((slice_, last - 1), (decode, last)):
            expected = tapped.logits[position]
            assert logit_distance(np.array(output.logits)[0], expected) <= LOGIT_TOLERANCE

    def test_taps_change_no_logit(self, tapped: TappedModel) -> None:
        """FW-2: taps change no logit of any row."""
        output = tapped.run(paged=False).step(
            tapped.ids, taps=tapped.taps, hidden_rows=range(NUM_TOKENS), logits="all"
        )

        assert np.array_equal(np.array(output.logits), tapped.logits)

    def test_taps_without_logits(self, tapped: TappedModel) -> None:
        """FW-2: a slice without logits still returns its hidden states."""
        layer = tapped.layout.num_layers - 1
        output = tapped.run(paged=False).step(
            tapped.ids, taps=[Tap(layer)], hidden_rows=[2, 5], logits="none"
        )

        assert output.logits is None
        found = np.array(output.hidden[Tap(layer)])
        assert logit_distance(found, tapped.streams[layer][[2, 5]]) <= LOGIT_TOLERANCE
