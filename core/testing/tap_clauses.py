"""Clauses about hidden states: they are those of the model, and asking changes nothing."""

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
"""Of the tokens of a slice, each so many-th one's hidden states are asked for."""

Floats = npt.NDArray[np.float32]


@attrs.frozen(eq=False)
class TappedModel:
    """A family's model in float32, and what it computes of some tokens without taps.

    Attributes:
        subject: The family.
        model: The model.
        layout: Its cache layout.
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
        """Build the model and run it once, its layers watched."""
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
        """Begin a run of its tokens."""
        family = self.subject.family
        return DirectRun(family, self.model, self.layout, NUM_TOKENS, paged=paged)

    def compare(self, output: ForwardOutput, rows: Sequence[int]) -> None:
        """Check hidden states of `rows`, counted from the first token, and the last logits."""
        for layer, stream in enumerate(self.streams):
            found = np.array(output.hidden[Tap(layer)])
            assert logit_distance(found, stream[[*rows]]) <= LOGIT_TOLERANCE, f"layer {layer}"
        final = np.array(output.hidden[FINAL])
        assert final.shape == (len(rows), self.streams[0].shape[1])
        scores = final @ np.array(self._head_weight()).T
        for row, position in enumerate(rows):
            assert rises_with(self.logits[position], scores[row]), f"final norm, row {position}"

    def _head_weight(self) -> mx.array:
        """Return the head's weight `[V, D]`: a layer's of its own, or the embedding's."""
        shape = (self.logits.shape[1], self.streams[0].shape[1])
        for kind in (nn.Linear, nn.Embedding):
            for _, module in self.model.named_modules():
                if isinstance(module, kind) and module.weight.shape == shape:
                    return module.weight
        raise AssertionError(f"the model has no layer or embedding of shape {shape}")


def rises_with(logits: Floats, scores: Floats) -> bool:
    """Return whether logits grow where scores do, whatever cap or factor is between them."""
    steps = np.diff(logits[np.argsort(scores)].astype(np.float64))
    return bool(steps.min() >= -LOGIT_TOLERANCE * np.ptp(logits))


def layers_of(model: nn.Module, num_layers: int) -> list[nn.Module]:
    """Return the layers of a model: the one list of as many modules as it has layers."""
    for _, module in model.named_modules():
        for value in module.values():
            if isinstance(value, list) and len(value) == num_layers:
                return value
    raise AssertionError(f"the model keeps its {num_layers} layers in no list of modules")


@contextmanager
def watched(layers: Sequence[nn.Module]) -> Generator[list[Floats]]:
    """Collect what each layer returns, in the order of the calls."""
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
    """Hidden states."""

    @pytest.fixture(scope="module")
    @classmethod
    def tapped(cls, subject: Subject) -> TappedModel:
        """The model, and what it computes without taps."""
        return TappedModel.of(subject)

    @pytest.mark.parametrize("path", ["flat", "paged"])
    def test_taps(self, tapped: TappedModel, path: str) -> None:
        """FW-2: of each layer and of the final norm, in a prefill slice and in a decode row."""
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
        """FW-2: with taps and without, the logits of all rows are the same numbers."""
        output = tapped.run(paged=False).step(
            tapped.ids, taps=tapped.taps, hidden_rows=range(NUM_TOKENS), logits="all"
        )

        assert np.array_equal(np.array(output.logits), tapped.logits)

    def test_taps_without_logits(self, tapped: TappedModel) -> None:
        """FW-2: a slice that wants no logits still gives its hidden states."""
        layer = tapped.layout.num_layers - 1
        output = tapped.run(paged=False).step(
            tapped.ids, taps=[Tap(layer)], hidden_rows=[2, 5], logits="none"
        )

        assert output.logits is None
        found = np.array(output.hidden[Tap(layer)])
        assert logit_distance(found, tapped.streams[layer][[2, 5]]) <= LOGIT_TOLERANCE
