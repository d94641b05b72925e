"""The cost of a restore against a prefill, predicted from recent measurements."""

from __future__ import annotations

import math

import attrs

RESTORE_OVERHEAD_US = 2000.0
"""Cost of a restore beside its bytes: queue, first seek, bookkeeping."""

MIN_SPILL_BLOCKS = 64

_MEMORY = 0.8
_FORGIVENESS = 0.9


@attrs.define
class Rate:
    """Microseconds a unit, weighted towards recent measurements; None before the first."""

    _units: float = 0.0
    _us: float = 0.0

    @property
    def us_per_unit(self) -> float | None:
        """The rate."""
        return self._us / self._units if self._units else None

    def record(self, units: float, us: float) -> None:
        """Add a measurement; older measurements fade."""
        self._units = _MEMORY * self._units + units
        self._us = _MEMORY * self._us + us

    def forgive(self) -> None:
        """Lower the rate a little, so that an unmeasured path is tried again."""
        self._us *= _FORGIVENESS


@attrs.define
class CostModel:
    """Measured and predicted times of restores and prefills.

    Attributes:
        block_bytes: Bytes of a block's tensors.
        restore: Microseconds a byte.
        prefill: Microseconds a token.
    """

    block_bytes: int
    restore: Rate = attrs.field(factory=Rate, init=False)
    prefill: Rate = attrs.field(factory=Rate, init=False)

    def restore_us(self, num_blocks: int, state_bytes: int = 0) -> int | None:
        """Return the predicted time of a restore; None without a measurement.

        Args:
            num_blocks: Blocks.
            state_bytes: Bytes of the sidecar that is read with them.
        """
        rate = self.restore.us_per_unit
        if rate is None:
            return None
        num_bytes = num_blocks * self.block_bytes + state_bytes
        return math.ceil(num_bytes * rate + RESTORE_OVERHEAD_US)

    def recompute_us(self, num_tokens: int) -> int | None:
        """Return the predicted time of a prefill; None without a measurement."""
        rate = self.prefill.us_per_unit
        return None if rate is None else math.ceil(num_tokens * rate)

    def restore_pays(self, num_blocks: int, num_tokens: int, state_bytes: int = 0) -> bool:
        """Return whether a restore beats a prefill; True until both are measured.

        Each refusal lowers the measured rate: a refused restore gives no new measurement, and
        one slow read must not close the tier for good.
        """
        restore = self.restore_us(num_blocks, state_bytes)
        recompute = self.recompute_us(num_tokens)
        if restore is None or recompute is None or restore < recompute:
            return True
        self.restore.forgive()
        return False

    def spill_pays(self, num_blocks: int, num_tokens: int) -> bool:
        """Return whether spilling a preempted request's prefix beats a later prefill.

        True only for long prefixes, with both sides measured, and by a margin of a fifth.
        """
        restore, recompute = self.restore_us(num_blocks), self.recompute_us(num_tokens)
        if num_blocks < MIN_SPILL_BLOCKS or restore is None or recompute is None:
            return False
        return 5 * restore < 4 * recompute
