"""A checkpoint's tensors, as a family reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol, Self

import mlx.core as mx
import mlx.nn as nn


class Weights(Protocol):
    """Name -> tensor. Immutable; `checkpoint.weights.Weights` is the one implementation."""

    @property
    def format(self) -> Literal["safetensors", "gguf"]:
        """File format of the tensors; values from GGUF may follow other conventions."""
        ...

    def __getitem__(self, name: str, /) -> mx.array:
        """Read one tensor."""
        ...

    def __contains__(self, name: object, /) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it."""
        ...

    def renamed(self, fn: Callable[[str], str | None]) -> Self:
        """Return the weights under other names; None from `fn` drops a tensor on purpose."""
        ...

    def mapped(self, fn: Callable[[str, mx.array], mx.array]) -> Self:
        """Return the weights with `fn(name, tensor)` in place of each tensor."""
        ...

    def stacked(self, component: str) -> Self:
        """Return the weights with `….component.3.rest` as row 3 of `….component.rest`.

        Raises:
            WeightError: An index is missing, or the tensors differ in shape or dtype.
        """
        ...

    def split(self, fn: Callable[[str], Sequence[str] | None]) -> Self:
        """Return the weights with tensors split into equal parts along the output axis.

        Args:
            fn: Name -> names of the parts, first outputs first; None leaves a tensor whole.

        Raises:
            WeightError: A tensor has no such equal parts, or two tensors get one name.
        """
        ...

    def load_into(self, module: nn.Module, *, keep_float32: Sequence[str] = ()) -> None:
        """Assign every parameter of `module` its tensor.

        Raises:
            WeightError: Tensors are missing, unexpected or mis-shaped; all are named.
        """
        ...
