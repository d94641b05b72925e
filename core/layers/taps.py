"""Hidden states at the step's taps, collected while the layers run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import mlx.core as mx

from ..contract.forward import FINAL, ForwardOutput, StepBatch, Tap
from .norms import ResidualNorm
from .stream import Stream

__all__ = ["Readout", "Taps"]


@attrs.frozen(eq=False)
class Readout:
    """Output of a trunk, for the head.

    Attributes:
        rows: Normed hidden states `[R, D]` of the rows with logits.
        hidden: Hidden states `[H, D]` at each tap.
    """

    rows: mx.array
    hidden: Mapping[Tap, mx.array]

    def output(self, head: Callable[[mx.array], mx.array]) -> ForwardOutput:
        """Return the output of `forward`.

        Args:
            head: Maps hidden states `[R, D]` to logits `[R, V]`.
        """
        return ForwardOutput(head(self.rows) if self.rows.shape[0] else None, self.hidden)


class Taps:
    """Collects the hidden states of one step; nothing is computed for a step without taps.

    Attributes:
        hidden: Hidden states `[H, D]` at each tap that was reached so far.
    """

    def __init__(self, batch: StepBatch) -> None:
        self.hidden: dict[Tap, mx.array] = {}
        self._batch = batch
        self._wanted = {tap.layer for tap in batch.taps}

    def beyond(self, layer: int) -> bool:
        """Return whether a tap reads behind `layer`, a later layer, or the final norm.

        For trunks that compute only some rows from a certain layer on.
        """
        return any(wanted is None or wanted >= layer for wanted in self._wanted)

    def after(self, layer: int, stream: Stream) -> None:
        """Keep the stream behind a layer if a tap reads there.

        Args:
            layer: Index of the layer.
            stream: The stream `[T, D]` behind the layer.
        """
        if layer in self._wanted and self._batch.hidden_rows is not None:
            self.hidden[Tap(layer)] = stream.rows(self._batch.hidden_rows).computed()

    def read_out(self, stream: Stream, norm: ResidualNorm) -> Readout:
        """Norm the rows with logits, and those of a final tap, behind the last layer.

        Args:
            stream: The stream `[T, D]` behind the last layer.
            norm: The model's last norm.
        """
        batch = self._batch
        rows = stream.norm_rows(norm, batch.logit_rows)
        if None in self._wanted and batch.hidden_rows is not None:
            same = batch.hidden_rows is batch.logit_rows
            self.hidden[FINAL] = rows if same else stream.norm_rows(norm, batch.hidden_rows)
        return Readout(rows, self.hidden)
