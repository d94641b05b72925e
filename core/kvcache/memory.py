"""The account of bytes: who holds how many of them, under one cap."""

from __future__ import annotations

import threading

from ..errors import CacheMisuseError, MemoryBudgetError

MIB = 1 << 20
GIB = 1 << 30


def floor_mib(num_bytes: int) -> int:
    """Return bytes in MiB, rounded down."""
    return num_bytes // MIB


def ceil_mib(num_bytes: int) -> int:
    """Return bytes in MiB, rounded up."""
    return -(-num_bytes // MIB)


class MemoryCoordinator:
    """One model's account of weights, pools and states, under one cap. Any thread may call it.

    Attributes:
        limit_bytes: The cap; None means that the account is kept and nothing is refused.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._held: dict[str, int] = {}  # name -> bytes
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        """Bytes registered."""
        with self._lock:
            return sum(self._held.values())

    def room(self, name: str) -> int | None:
        """Return the bytes that a holder may hold at most, or None without a cap.

        A holder that is not registered yet is welcome to ask.
        """
        if self.limit_bytes is None:
            return None
        with self._lock:
            others = sum(
                num_bytes for holder, num_bytes in self._held.items() if holder != name
            )
        return max(0, self.limit_bytes - others)

    def held(self) -> dict[str, int]:
        """Return the bytes of each holder."""
        with self._lock:
            return dict(self._held)

    def register(self, name: str, num_bytes: int) -> None:
        """Enter a new holder.

        Raises:
            MemoryBudgetError: The cap would be passed; nothing was changed.
            CacheMisuseError: The name is taken.
        """
        with self._lock:
            if name in self._held:
                raise CacheMisuseError(f"register {name!r}", "it is registered: update it")
            self._set(name, num_bytes)

    def update(self, name: str, num_bytes: int) -> None:
        """Change what a holder holds; less is always allowed.

        Raises:
            MemoryBudgetError: The cap would be passed; nothing was changed.
            CacheMisuseError: The name is unknown.
        """
        with self._lock:
            if name not in self._held:
                raise CacheMisuseError(f"update {name!r}", "it is not registered")
            self._set(name, num_bytes)

    def release(self, name: str) -> None:
        """Strike a holder off.

        Raises:
            CacheMisuseError: The name is unknown.
        """
        with self._lock:
            if self._held.pop(name, None) is None:
                raise CacheMisuseError(f"release {name!r}", "it is not registered")

    def _set(self, name: str, num_bytes: int) -> None:
        before = self._held.get(name, 0)
        others = sum(self._held.values()) - before
        if (
            self.limit_bytes is not None
            and num_bytes > before
            and others + num_bytes > self.limit_bytes
        ):
            held = ", ".join(f"{n} {ceil_mib(b)} MiB" for n, b in self._held.items())
            raise MemoryBudgetError(
                f"{name} asks for {ceil_mib(num_bytes)} MiB of a limit of "
                f"{floor_mib(self.limit_bytes)} MiB (registered: {held or 'nothing'})"
            )
        self._held[name] = num_bytes
