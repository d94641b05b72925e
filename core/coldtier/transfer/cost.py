"""Is reading faster than computing again? Answered from what both took lately."""

from __future__ import annotations

import math

import attrs

RESTORE_OVERHEAD_US = 2000.0
"""What a restore takes beside its bytes: the queue, the first seek, the bookkeeping."""

MIN_SPILL_BLOCKS = 64

_MEMORY = 0.8
_FORGIVENESS = 0.9


@attrs.define
class Rate:
    """Microseconds a unit, the last measurements counting most; None before the first."""

    _units: float = 0.0
    _us: float = 0.0

    @property
    def us_per_unit(self) -> float | None:
        """The rate."""
        return self._us / self._units if self._units else None

    def record(self, units: float, us: float) -> None:
        """Take a measurement in; older ones fade."""
        self._units = _MEMORY * self._units + units
        self._us = _MEMORY * self._us + us

    def forgive(self) -> None:
        """Make the rate a little better, so that one that nobody measures is tried again."""
        self._us *= _FORGIVENESS


@attrs.define
class CostModel:
    """What restoring and prefilling took, and what they would take.

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
        """Return whether to restore rather than to compute; yes until both are measured.

        A refusal fades: without a restore there is no new measurement, and one slow read
        must not close the tier for good.
        """
        restore = self.restore_us(num_blocks, state_bytes)
        recompute = self.recompute_us(num_tokens)
        if restore is None or recompute is None or restore < recompute:
            return True
        self.restore.forgive()
        return False

    def spill_pays(self, num_blocks: int, num_tokens: int) -> bool:
        """Return whether a preempted turn's prefix is better written than computed again.

        Only for long prefixes, on measurements of both sides, and by a margin of a fifth.
        """
        restore, recompute = self.restore_us(num_blocks), self.recompute_us(num_tokens)
        if num_blocks < MIN_SPILL_BLOCKS or restore is None or recompute is None:
            return False
        return 5 * restore < 4 * recompute
