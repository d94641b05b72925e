"""Finding out which model it is, beside its first requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from .. import interrupts
from ..checkpoint.digest_memory import DigestMemory
from ..checkpoint.identity import WeightIdentity
from ..coldtier.objects.fingerprint import FingerprintComponents, fingerprint
from ..errors import CheckpointError
from ..ids import Fingerprint
from ..log import get_logger


class Identification:
    """A thread that digests a checkpoint's weights and names the model.

    Until it has, nothing is written and nothing restored; if it cannot, nothing ever is.
    """

    def __init__(
        self,
        weights: WeightIdentity,
        components: Callable[[bytes], FingerprintComponents],
        memory: DigestMemory,
        found: Callable[[Fingerprint], None],
    ) -> None:
        """Start the thread; `failure` says why the model cannot be identified, if so.

        Args:
            weights: The weight files as they were before the first of them was read.
            components: Makes the fingerprint's components of the weights' digest.
            memory: Digests of files that were read before.
            found: Is told the fingerprint, on the thread.
        """
        self.failure: str | None = None
        self._cancelled = threading.Event()
        self._log = get_logger("engine")
        digest = partial(weights.digest, memory, cancelled=self._cancelled.is_set)
        self._thread = threading.Thread(
            target=self._run,
            args=(digest, components, found),
            name="neve-identification",
            daemon=True,
        )
        self._thread.start()

    @property
    def is_pending(self) -> bool:
        """Whether the model may still be identified."""
        return self._thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it is known, or known not to be, for at most `timeout_s`."""
        interrupts.join(self._thread, timeout_s)

    def close(self) -> None:
        """Give up."""
        self._cancelled.set()
        self._thread.join()

    def _run(
        self,
        digest: Callable[[], bytes | None],
        components: Callable[[bytes], FingerprintComponents],
        found: Callable[[Fingerprint], None],
    ) -> None:
        began = time.perf_counter()
        try:
            weights = digest()
        except (CheckpointError, OSError) as error:
            self.failure = f"the model cannot be identified: {error}"
            self._log.warning("engine.identification.failed", reason=self.failure)
            return
        if weights is not None:
            found(fingerprint(components(weights)))
            seconds = round(time.perf_counter() - began, 3)
            self._log.info("engine.model.identified", seconds=seconds)
