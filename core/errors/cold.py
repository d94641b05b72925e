"""Errors of the cold tier, and of the gate that a family passes to use it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from .general import CheckpointError, NeveError


class ColdTierError(NeveError):
    """Something in the cold tier failed; a caller computes what it would have restored."""


class StoreUnavailableError(ColdTierError, OSError):
    """No store of cold objects can be opened.

    Attributes:
        reason: Why, in one sentence.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the cold tier has no store: {reason}")


class ObjectRejectedError(ColdTierError, ValueError):
    """A cold object is not what it should be; nothing of it may be used.

    Attributes:
        cause: `format`, `checksum`, `fingerprint` or `layout`.
    """

    def __init__(
        self, cause: Literal["format", "checksum", "fingerprint", "layout"], reason: str
    ) -> None:
        self.cause: Literal["format", "checksum", "fingerprint", "layout"] = cause
        super().__init__(f"the object is rejected ({cause}): {reason}")


class WeightsChangedError(CheckpointError):
    """A weight file is not the one that was opened, so nothing can vouch for what was read.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(
            f"{path}: the file changed after the checkpoint was opened: load it again when "
            "nothing writes to it"
        )


class EvidenceError(NeveError, ValueError):
    """A record of a passed restart-parity gate cannot be found, read or written."""


class GateFailedError(NeveError):
    """A family did not pass the restart-parity gate.

    Attributes:
        family: The family.
        failures: What was wrong, one sentence each.
    """

    def __init__(self, family: str, failures: Sequence[str]) -> None:
        self.family = family
        self.failures = tuple(failures)
        super().__init__(f"{family} did not pass the gate: {'; '.join(self.failures)}")


class UnknownModelError(ColdTierError, LookupError):
    """A store has no model, or several, whose fingerprint begins as asked for."""


class BundleError(ColdTierError, ValueError):
    """A file is no bundle, or a hostile one; nothing more of it was imported.

    Attributes:
        path: The file.
        num_imported: Objects that had been imported before.
    """

    def __init__(self, path: Path, reason: str, num_imported: int = 0) -> None:
        self.path = path
        self.num_imported = num_imported
        super().__init__(f"{path}: {reason}")
