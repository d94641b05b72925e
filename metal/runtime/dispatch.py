"""Which variant of an operation runs: chosen, checked at its first use, and counted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import mlx.core as mx

from . import launch

_COUNTS: Counter[str] = Counter()
_VERDICTS: dict[tuple[str, str, Hashable], bool] = {}
_SAID: set[tuple[str, str]] = set()
_LOG = logging.getLogger("neve.metal")

_TOLERANCE = {mx.float32: 2e-3, mx.float16: 1e-2, mx.bfloat16: 5e-2}
"""By dtype, of the largest element. Products of float32 are TF32 by default on CUDA, so the
reference is off by 3e-4 there."""


DTYPES = (mx.float32, mx.float16, mx.bfloat16)
"""What every operation's kernels are written for."""

_OPERATIONS: dict[str, Operation] = {}


class KernelMismatchError(ValueError):
    """A kernel's numbers are not those of its reference."""


@attrs.frozen
class Operation:
    """An operation with kernels, as tests find it.

    Attributes:
        name: As the counters show it.
        check: Compares the kernel with its reference: `check(dtype, *variant, seed=seed)`.
        variants: Further arguments of `check`; together they launch all of its kernels.
    """

    name: str
    check: Callable[..., None]
    variants: tuple[tuple[Any, ...], ...]

    def probes(self) -> Generator[Probe]:
        """Yield a comparison for each variant in each dtype."""
        for variant in self.variants:
            for dtype in DTYPES:
                yield Probe(self, dtype, variant)


@attrs.frozen
class Probe:
    """A comparison of one variant of an operation with its reference."""

    operation: Operation
    dtype: mx.Dtype
    variant: tuple[Any, ...]

    def __str__(self) -> str:
        words = (self.operation.name, str(self.dtype).removeprefix("mlx.core."), *self.variant)
        return "-".join(map(str, words))

    def __call__(self, seed: int = 1) -> None:
        """Run the comparison on the back end in use, with inputs drawn from `seed`."""
        self.operation.check(self.dtype, *self.variant, seed=seed)


def register(
    operation: str, check: Callable[..., None], variants: Iterable[tuple[Any, ...]] = ((),)
) -> None:
    """Say how an operation's kernels are compared with their reference.

    A module of kernels calls it when it is imported. Text checks, seeded bugs and the tests
    on a GPU go through all that is registered.

    Raises:
        ValueError: The name is taken.
    """
    if operation in _OPERATIONS:
        raise ValueError(f"operation {operation} is registered twice")
    _OPERATIONS[operation] = Operation(operation, check, tuple(variants))


def registered() -> Mapping[str, Operation]:
    """Return what the modules imported so far have registered, by name."""
    return dict(_OPERATIONS)


def record(operation: str, variant: str, times: int = 1) -> None:
    """Count dispatches of `operation` to `variant`."""
    _COUNTS[f"{operation}:{variant}"] += times


def counts() -> dict[str, int]:
    """Return how often each `operation:variant` was put into a graph by this process."""
    return dict(_COUNTS)


def takes_kernel(
    operation: str,
    variant: Hashable,
    check: Callable[[], None],
    *,
    unsupported: str | None = None,
) -> bool:
    """Decide whether an operation's kernel runs, and count the decision.

    The first use of a variant runs `check`. A kernel that does not compile, or whose numbers
    are wrong, is left alone from then on: the caller does without it, which is said once.

    Args:
        operation: Name of the operation.
        variant: What the kernel is compiled for.
        check: Compares the kernel with its reference; raises whatever it likes.
        unsupported: Why the kernel cannot take these arguments, None if it can.
    """
    backend = launch.backend()
    if backend is None or unsupported is not None:
        if backend is not None and unsupported is not None:
            _say(operation, unsupported)
        record(operation, "ops")
        return False
    key = (backend.name, operation, variant)
    if key not in _VERDICTS:
        _VERDICTS[key] = not backend.self_checks or _passes(operation, check)
    record(operation, backend.name if _VERDICTS[key] else "fallback")
    return _VERDICTS[key]


def noise(seed: int, dtype: mx.Dtype, *shape: int) -> mx.array:
    """Return numbers to try a kernel on, drawn from `seed`."""
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def compare(got: Sequence[mx.array], want: Sequence[mx.array]) -> None:
    """Compare what a kernel wrote with what its reference says.

    Raises:
        KernelMismatchError: An element is off by more than its dtype's tolerance.
    """
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        a32, b32 = a.astype(mx.float32), b.astype(mx.float32)
        size: Any = mx.maximum(mx.abs(b32).max(), 1e-3).item()
        error: Any = mx.abs(a32 - b32).max().item() / size
        if not error <= _TOLERANCE.get(a.dtype, 0.0):
            raise KernelMismatchError(f"output {i} is off by {error:.1e} of its range")


def _passes(operation: str, check: Callable[[], None]) -> bool:
    try:
        check()
    except Exception as error:  # noqa: BLE001  compilers and drivers raise anything
        _say(operation, f"its kernel failed the self-check ({_gist(error)})")
        return False
    return True


def _gist(error: Exception) -> str:
    """Return the first line of an error that names one: compilers write pages."""
    lines = f"{type(error).__name__}: {error}".splitlines()
    told = next((line for line in lines if "error:" in line), lines[0])
    return told[:300]


def _say(operation: str, reason: str) -> None:
    if (operation, reason) not in _SAID:
        _SAID.add((operation, reason))
        _LOG.warning("%s runs without its kernel: %s", operation, reason)
