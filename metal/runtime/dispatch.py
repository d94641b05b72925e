"""Choice between kernel and reference: self-check at the first use, counters, register."""

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
"""Dtype -> largest error, relative to the largest element. float32 products are TF32 by default
on CUDA, where the reference itself has an error of 3e-4."""


DTYPES = (mx.float32, mx.float16, mx.bfloat16)
"""Dtypes that the kernels of every operation support."""

_OPERATIONS: dict[str, Operation] = {}


class KernelMismatchError(ValueError):
    """The results of a kernel differ from its reference."""


@attrs.frozen
class Operation:
    """An operation with kernels, as the register keeps it.

    Attributes:
        name: Name in the counters.
        check: Compares the kernel with its reference: `check(dtype, *variant, seed=seed)`.
        variants: Further arguments of `check`; together the variants launch all kernels.
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
    """Register the comparison of an operation's kernels with their reference.

    A module with kernels registers them when it is imported. Text checks, seeded bugs and the
    tests on a GPU run over the whole register.

    Raises:
        ValueError: The name is registered already.
    """
    if operation in _OPERATIONS:
        raise ValueError(f"operation {operation} is registered twice")
    _OPERATIONS[operation] = Operation(operation, check, tuple(variants))


def registered() -> Mapping[str, Operation]:
    """Return the operations of the modules imported so far, by name."""
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

    The first use of a variant runs `check`. If the kernel does not compile or its results are
    wrong, the reference runs from then on, and one warning is logged.

    Args:
        operation: Name of the operation.
        variant: Key of the compiled kernel.
        check: Compares the kernel with its reference; any exception is a failure.
        unsupported: Why the kernel cannot take the arguments, None if it can.
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
    """Return normal random numbers for a self-check."""
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def compare(got: Sequence[mx.array], want: Sequence[mx.array]) -> None:
    """Compare outputs of a kernel with those of its reference.

    Args:
        got: Outputs of the kernel.
        want: Outputs of the reference.

    Raises:
        KernelMismatchError: The error of an element exceeds the tolerance of its dtype.
    """
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        a32, b32 = a.astype(mx.float32), b.astype(mx.float32)
        size: Any = mx.maximum(mx.abs(b32).max(), 1e-3).item()
        error: Any = mx.abs(a32 - b32).max().item() / size
        if not error <= _TOLERANCE.get(a.dtype, 0.0):
            raise KernelMismatchError(f"output {i} differs by {error:.1e} of its range")


def _passes(operation: str, check: Callable[[], None]) -> bool:
    try:
        check()
    except Exception as error:  # noqa: BLE001  compilers and drivers raise any exception
        _say(operation, f"the kernel failed the self-check ({_gist(error)})")
        return False
    return True


def _gist(error: Exception) -> str:
    """Return the line of a compiler's output that names the error, at most 300 characters."""
    lines = f"{type(error).__name__}: {error}".splitlines()
    told = next((line for line in lines if "error:" in line), lines[0])
    return told[:300]


def _say(operation: str, reason: str) -> None:
    if (operation, reason) not in _SAID:
        _SAID.add((operation, reason))
        _LOG.warning("%s runs as MLX operations: %s", operation, reason)
