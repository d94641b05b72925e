"""Identification of the model: its fingerprint is computed while requests run."""

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
    """A thread that digests a checkpoint's weights and computes the model's fingerprint.

    The cold tier writes and restores nothing before the fingerprint is known, or ever if the
    identification fails.
    """

    def __init__(
        self,
        weights: WeightIdentity,
        components: Callable[[bytes], FingerprintComponents],
        memory: DigestMemory,
        found: Callable[[Fingerprint], None],
    ) -> None:
        """Start the thread. If identification fails, `failure` is set to the reason.

        Args:
            weights: The state of the weight files before loading.
            components: Returns the fingerprint's components for a digest of the weights.
            memory: Digests of weight files from earlier runs.
            found: Called with the fingerprint, on the thread.
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
        """Whether identification is running."""
        return self._thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end of identification, for at most `timeout_s` seconds."""
        interrupts.join(self._thread, timeout_s)

    def close(self) -> None:
        """Cancel identification and wait for the thread."""
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
