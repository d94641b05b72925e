"""The tensors of safetensors files, as lazy tensors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import cast

import mlx.core as mx

from ..errors import WeightError
from .lazy_tensor import LazyTensor
from .safetensors_header import read_header
from .shard_index import INDEX_NAME, find_shards

DTYPES: Mapping[str, mx.Dtype] = {
    "BOOL": mx.bool_,
    "U8": mx.uint8,
    "I8": mx.int8,
    "F8_E4M3": mx.uint8,
    "F8_E8M0": mx.uint8,
    "U16": mx.uint16,
    "I16": mx.int16,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "U32": mx.uint32,
    "I32": mx.int32,
    "F32": mx.float32,
    "U64": mx.uint64,
    "I64": mx.int64,
    "C64": mx.complex64,
}
"""Dtype name in the header -> dtype of the array that MLX loads."""


class Shard:
    """One safetensors file with a checked header."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries = read_header(path)
        # Arrays are unevaluated and returned only once: a kept reference would hold the bytes
        # after the caller has cast and released the array.
        self._unread: dict[str, mx.array] = {}

    def tensors(self) -> dict[str, LazyTensor]:
        """Return the file's tensors by name."""
        return {
            name: LazyTensor(entry.shape, DTYPES[entry.dtype], partial(self._read, name))
            for name, entry in self._entries.items()
        }

    def _read(self, name: str) -> mx.array:
        if name not in self._unread:
            loaded = mx.load(str(self._path), format="safetensors")
            self._unread = cast("dict[str, mx.array]", loaded)
        return self._unread.pop(name)


def _check_listed(path: Path, held: set[str], listed: frozenset[str]) -> None:
    missing, unexpected = sorted(listed - held), sorted(held - listed)
    if missing:
        raise WeightError(
            f"{path}: {INDEX_NAME} lists tensors that the file lacks: {', '.join(missing[:8])}",
            missing=missing,
        )
    if unexpected:
        raise WeightError(
            f"{path}: holds tensors that {INDEX_NAME} does not list for it: "
            f"{', '.join(unexpected[:8])}",
            unexpected=unexpected,
        )


def open_shards(directory: Path) -> dict[str, LazyTensor]:
    """Return all tensors of a checkpoint directory, by name; only headers are read.

    Raises:
        CheckpointError: A file is missing, stray or malformed.
        WeightError: A file and the index disagree about a tensor.
    """
    tensors: dict[str, LazyTensor] = {}
    for path, listed in find_shards(directory).items():
        held = Shard(path).tensors()
        if listed is not None:
            _check_listed(path, set(held), listed)
        tensors.update(held)
    return tensors
