"""Launches, choice and self-check of recurrences whose state is a matrix per head."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import mlx.core as mx

from ..runtime import dispatch
from ..runtime.launch import Kernel, Launch, Template, floats, ints

WIDTHS = (32, 64, 96, 128, 256)
"""Elements of a state row that kernels are written for: 8 lanes hold a row, in words of 4."""

_THREADS, _ROWS = 128, 16
_LENGTHS = (1, 11)
"""Tokens of a self-check: decoding, and a slice that ends within a staged chunk."""

Result: TypeAlias = tuple[mx.array, mx.array]
"""Outputs `[N, L, H, P]` and the state `[N, H, P, S]` after the last token."""

Check: TypeAlias = Callable[[tuple[mx.Dtype, ...], tuple[int, ...]], None]
"""Self-check for the dtypes of a recurrence's inputs and the dimensions `(P, S)`."""


@attrs.frozen
class ScanKernel:
    """A kernel that runs a recurrence over all tokens of a batch of rows in one launch.

    Its inputs are `tokens`, `parameters`, the state, `ip` and `fp`; `ip` is the number of
    tokens, the heads of a group, the row length of each of `tokens`, and the first column that
    counts of each.

    Attributes:
        kernel: The body; its name is that of the operation.
    """

    kernel: Kernel

    def takes(self, dtypes: tuple[mx.Dtype, ...], state: mx.array, check: Check) -> bool:
        """Decide whether the kernel runs, and count the decision.

        Args:
            dtypes: Of the inputs, those that the kernel is compiled for.
            state: `[N, H, P, S]`.
            check: Self-check of the first use.
        """
        dims = state.shape[2:]
        unsupported = None
        if dims[1] not in WIDTHS:
            unsupported = f"state rows have {dims[1]} elements, the kernel takes {WIDTHS}"
        elif state.dtype != mx.float32:
            unsupported = f"the state is {state.dtype}, the kernel takes float32"
        return dispatch.takes_kernel(
            self.kernel.name,
            (check.__name__, dtypes, dims),
            functools.partial(check, dtypes, dims),
            unsupported=unsupported,
        )

    def launch(
        self,
        tokens: Sequence[mx.array],
        starts: Sequence[int],
        parameters: Sequence[mx.array],
        state: mx.array,
        *,
        groups: int,
        dtype: mx.Dtype,
        template: Template,
        numbers: Sequence[float],
    ) -> Result:
        """Put the launch into the graph.

        Args:
            tokens: Arrays `[N, L, …]` that hold the inputs of tokens; several may be the same
                array.
            starts: First column that counts, of the row of a token, in each of `tokens`.
            parameters: Arrays `[H]` of the layer.
            state: State before the first token, `[N, H, P, S]` float32.
            groups: Groups of consecutive heads that share inputs; a divisor of `H`.
            dtype: Of the outputs.
            template: Compile-time constants of the body.
            numbers: Float parameters, `fp` of the body.

        Returns:
            Outputs `[N, L, H, P]` and the state after the last token, float32.
        """
        num_rows, num_heads, depth, _ = state.shape
        length = tokens[0].shape[1]
        launch = Launch(
            template=template,
            grid=(_THREADS * -(-depth // _ROWS), num_heads, num_rows),
            threadgroup=(_THREADS, 1, 1),
            outputs=[((num_rows, length, num_heads, depth), dtype), (state.shape, mx.float32)],
        )
        lengths = (math.prod(x.shape[2:]) for x in tokens)
        ip = ints(length, num_heads // groups, *lengths, *starts)
        inputs = (*tokens, *parameters, state, ip, floats(*numbers))
        out, after = self.kernel(*inputs, launch=launch)
        return out, after


def compare(
    kernel: Callable[..., Result],
    reference: Callable[..., Result],
    arguments: Callable[[int], tuple[Any, ...]],
) -> None:
    """Compare a kernel with its reference on one token and on several.

    Args:
        kernel: Launches the kernel.
        reference: Computes the same in MLX operations.
        arguments: Number of tokens -> arguments of both.

    Raises:
        KernelMismatchError: An element differs by more than its dtype's tolerance.
    """
    got: list[mx.array] = []
    want: list[mx.array] = []
    for length in _LENGTHS:
        drawn = arguments(length)
        got += kernel(*drawn)
        want += reference(*drawn)
    dispatch.compare(got, want)


def draw(seed: int, shapes: Sequence[tuple[int, ...]]) -> list[mx.array]:
    """Return normal random arrays of these shapes, float32."""
    keys = mx.random.split(mx.random.key(seed), len(shapes))
    return [mx.random.normal(shape, key=key) for shape, key in zip(shapes, keys, strict=True)]
