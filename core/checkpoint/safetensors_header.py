"""The header of a safetensors file, checked in full before any use.

Layout: eight bytes with the header's length (little-endian), the header in JSON, then the
tensors' bytes without a gap. Reading costs at most the header's own length.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from ..errors import CheckpointError
from .strict_json import parse_object

MAX_HEADER_BYTES = 100_000_000
MAX_DIMS = 32
MAX_DIM = 2**31 - 1
MAX_DATA_BYTES = 2**63 - 1

ITEMSIZES: Mapping[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "C64": 8,
}
"""Dtype name -> bytes of an element, for the dtypes that MLX reads."""

_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}


@attrs.frozen
class TensorEntry:
    """One tensor of a file.

    Attributes:
        dtype: A key of `ITEMSIZES`.
        shape: Dimensions of the tensor.
        begin: Offset of the tensor's first byte from the end of the header.
        end: Offset behind the tensor's last byte.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def _read_raw(path: Path) -> tuple[bytes, int]:
    """Return the header's JSON and the number of data bytes behind the header."""
    with path.open("rb") as file:
        file_bytes = os.fstat(file.fileno()).st_size
        prefix = file.read(_LENGTH_BYTES)
        if len(prefix) < _LENGTH_BYTES:
            raise ValueError(
                f"is truncated: it has {file_bytes} bytes, too few for a safetensors file"
            )
        length = int.from_bytes(prefix, "little")
        if length > MAX_HEADER_BYTES:
            raise ValueError(
                f"claims a header of {length} bytes, at most {MAX_HEADER_BYTES} are allowed"
            )
        data_bytes = file_bytes - _LENGTH_BYTES - length
        if data_bytes < 0:
            raise ValueError(
                f"is truncated: the header has {length} bytes, the file {file_bytes}"
            )
        return file.read(length), data_bytes


def _is_count(value: Any, most: int) -> bool:
    # bool is a subclass of int
    return type(value) is int and 0 <= value <= most


def _parse_shape(raw: Any) -> tuple[int, ...]:
    if not isinstance(raw, list) or len(raw) > MAX_DIMS:
        raise ValueError(f"shape must be a list of at most {MAX_DIMS} integers")
    if not all(_is_count(dim, MAX_DIM) for dim in raw):
        raise ValueError(f"shape {raw} must consist of integers from 0 to {MAX_DIM}")
    return tuple(raw)


def _parse_offsets(raw: Any) -> tuple[int, int]:
    if (
        not isinstance(raw, list)
        or len(raw) != 2
        or not all(_is_count(offset, MAX_DATA_BYTES) for offset in raw)
        or raw[0] > raw[1]
    ):
        raise ValueError(
            f"data_offsets must be [begin, end], integers from 0 to {MAX_DATA_BYTES}"
        )
    return raw[0], raw[1]


def _parse_entry(raw: Any) -> TensorEntry:
    if not isinstance(raw, dict) or set(raw) != _ENTRY_KEYS:
        raise ValueError(f"must be an object with the keys {', '.join(sorted(_ENTRY_KEYS))}")
    dtype = raw["dtype"]
    if not isinstance(dtype, str) or dtype not in ITEMSIZES:
        raise ValueError(f"dtype {dtype!r} is not one that MLX reads ({', '.join(ITEMSIZES)})")
    shape = _parse_shape(raw["shape"])
    begin, end = _parse_offsets(raw["data_offsets"])
    needed = math.prod(shape) * ITEMSIZES[dtype]
    if end - begin != needed:
        raise ValueError(
            f"{dtype} {list(shape)} takes {needed} bytes, data_offsets span {end - begin}"
        )
    return TensorEntry(dtype, shape, begin, end)


def _check_metadata(raw: Any) -> None:
    if raw is None:  # MLX writes null without metadata
        return
    if not isinstance(raw, dict) or not all(isinstance(v, str) for v in raw.values()):
        raise ValueError(f"{_METADATA} must be an object of strings")


def _check_contiguous(entries: Mapping[str, TensorEntry], data_bytes: int) -> None:
    end = 0
    for name, entry in sorted(entries.items(), key=lambda e: (e[1].begin, e[1].end)):
        if entry.begin < end:
            raise ValueError(f"tensor {name!r} overlaps the tensor before")
        if entry.begin > end:
            raise ValueError(f"a hole of {entry.begin - end} bytes precedes tensor {name!r}")
        end = entry.end
    if end > data_bytes:
        raise ValueError(
            f"is truncated: the tensors take {end} bytes, but {data_bytes} follow the header"
        )
    if end != data_bytes:
        raise ValueError(f"tensors take {end} bytes, but {data_bytes} follow the header")


def _parse(raw: bytes, data_bytes: int) -> dict[str, TensorEntry]:
    if not raw.startswith(b"{"):
        raise ValueError("the header is no JSON object: this is no safetensors file")
    entries: dict[str, TensorEntry] = {}
    for name, value in parse_object(raw).items():
        if name == _METADATA:
            _check_metadata(value)
            continue
        try:
            entries[name] = _parse_entry(value)
        except ValueError as error:
            raise ValueError(f"tensor {name!r}: {error}") from error
    _check_contiguous(entries, data_bytes)
    return entries


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Return the tensors of a safetensors file, by name, in the header's order.

    Only the header is read. MLX loads an accepted file without reading outside the file.

    Raises:
        CheckpointError: The file cannot be read or breaks a rule of the format; the message
            names the file and, where there is one, the tensor.
    """
    try:
        return _parse(*_read_raw(path))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
