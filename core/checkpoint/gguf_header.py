"""The header of a GGUF file, checked in full before any tensor is read.

Layout (little-endian): magic, version, two counts, metadata, one descriptor a tensor,
padding, the tensors' bytes. Every length is checked against the file's size before its use, so
the file's size bounds the cost, whatever the header claims.

Source: the GGUF specification of the ggml project.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from ..errors import CheckpointError, UnsupportedModelError
from .gguf_metadata import Cursor, Metadata, read_metadata

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4
MAX_DIM = 2**31 - 1
DEFAULT_ALIGNMENT = 32

TENSOR_TYPES = (
    GGMLQuantizationType.F32,
    GGMLQuantizationType.F16,
    GGMLQuantizationType.BF16,
    GGMLQuantizationType.Q4_0,
    GGMLQuantizationType.Q4_1,
    GGMLQuantizationType.Q8_0,
    GGMLQuantizationType.Q4_K,
    GGMLQuantizationType.Q5_K,
    GGMLQuantizationType.Q6_K,
)
"""Tensor types that can be dequantised."""

_MIN_PAIR_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


@attrs.frozen
class GGUFTensor:
    """One tensor of a GGUF file.

    Attributes:
        kind: Storage type of the elements.
        shape: Dimensions, slowest first; GGUF itself lists them in reverse.
        offset: Offset of the tensor's first byte in the file.
        num_bytes: Bytes of the tensor.
    """

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@attrs.frozen(eq=False)
class GGUFHeader:
    """Contents of a GGUF file.

    Attributes:
        buffer: The mapped file.
        metadata: Key-value pairs of the file.
        tensors: Name -> tensor, in the file's order.
    """

    buffer: mmap.mmap = attrs.field(repr=False)
    metadata: Metadata = attrs.field(repr=False)
    tensors: Mapping[str, GGUFTensor] = attrs.field(repr=False)


def _check_version(version: int) -> None:
    if version in VERSIONS:
        return
    if version & 0xFFFF == 0:
        raise UnsupportedModelError("is a big-endian GGUF file; convert it to little-endian")
    known = " and ".join(map(str, VERSIONS))
    raise UnsupportedModelError(f"is of GGUF version {version}; {known} are supported")


def _read_counts(cursor: Cursor) -> tuple[int, int]:
    if bytes(cursor.buffer[: len(MAGIC)]) != MAGIC:
        raise ValueError("is no GGUF file: it does not begin with 'GGUF'")
    cursor.skip(len(MAGIC))
    _check_version(cursor.number("I"))
    num_tensors, num_pairs = cursor.numbers("Q", 2)
    least = num_tensors * _MIN_TENSOR_BYTES + num_pairs * _MIN_PAIR_BYTES
    if least > len(cursor.buffer):
        raise ValueError(
            f"claims {num_tensors} tensors and {num_pairs} keys, "
            f"too many for its {len(cursor.buffer)} bytes"
        )
    return num_tensors, num_pairs


def _read_shape(cursor: Cursor) -> tuple[int, ...]:
    num_dims: int = cursor.number("I")
    if not 1 <= num_dims <= MAX_DIMS:
        raise ValueError(f"has {num_dims} dimensions, not 1 to {MAX_DIMS}")
    shape = tuple(reversed(cursor.numbers("Q", num_dims)))
    if not all(1 <= dim <= MAX_DIM for dim in shape):
        raise ValueError(f"has the impossible shape {list(shape)}")
    return shape


def _read_kind(cursor: Cursor) -> GGMLQuantizationType:
    number: int = cursor.number("I")
    known = {int(kind): kind for kind in GGMLQuantizationType}
    if number not in known:
        raise UnsupportedModelError(f"is of the unknown type {number}")
    if known[number] not in TENSOR_TYPES:
        raise UnsupportedModelError(
            f"is of type {known[number].name}; supported are "
            f"{', '.join(kind.name for kind in TENSOR_TYPES)}"
        )
    return known[number]


def _read_tensor(cursor: Cursor) -> GGUFTensor:
    shape = _read_shape(cursor)
    kind = _read_kind(cursor)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        raise ValueError(f"has rows of {shape[-1]}, no multiple of {kind.name}'s {block}")
    num_bytes = math.prod(shape) // block * block_bytes
    return GGUFTensor(kind, shape, cursor.number("Q"), num_bytes)


def _read_tensors(cursor: Cursor, count: int) -> dict[str, GGUFTensor]:
    """Return the tensors with offsets that are relative to the end of the header."""
    tensors: dict[str, GGUFTensor] = {}
    for _ in range(count):
        name = cursor.text()
        if name in tensors:
            raise ValueError(f"tensor {name!r} is repeated")
        try:
            tensors[name] = _read_tensor(cursor)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"tensor {name!r} {error}") from error
        except ValueError as error:
            raise ValueError(f"tensor {name!r} {error}") from error
    return tensors


def _alignment(metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
        raise ValueError(f"general.alignment must be a power of two from 8, got {alignment!r}")
    return alignment


def _place(
    tensors: Mapping[str, GGUFTensor], begin: int, alignment: int, file_bytes: int
) -> dict[str, GGUFTensor]:
    """Return the tensors with offsets in the file, checked for overlaps and bounds."""
    begin += -begin % alignment
    placed = {n: attrs.evolve(t, offset=begin + t.offset) for n, t in tensors.items()}
    end = begin
    for name, tensor in sorted(placed.items(), key=lambda item: item[1].offset):
        if tensor.offset % alignment:
            raise ValueError(f"tensor {name!r} is not aligned to {alignment} bytes")
        if tensor.offset < end:
            raise ValueError(f"tensor {name!r} overlaps the tensor before")
        end = tensor.offset + tensor.num_bytes
        if end > file_bytes:
            raise ValueError(f"is truncated: tensor {name!r} ends at {end} of {file_bytes}")
    return placed


def _check_whole(metadata: Mapping[str, Any]) -> None:
    count = metadata.get("split.count", 1)
    if count != 1:
        raise UnsupportedModelError(f"is one of {count} parts; merge them into one file")


def _parse(buffer: mmap.mmap) -> GGUFHeader:
    cursor = Cursor(buffer)
    num_tensors, num_pairs = _read_counts(cursor)
    metadata = read_metadata(cursor, num_pairs)
    _check_whole(metadata)
    tensors = _read_tensors(cursor, num_tensors)
    placed = _place(tensors, cursor.position, _alignment(metadata), len(buffer))
    return GGUFHeader(buffer, metadata, placed)


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def read_gguf_header(path: Path) -> GGUFHeader:
    """Map a GGUF file and return its header; no tensor is read.

    Raises:
        CheckpointError: The file cannot be read or breaks a rule of the format.
        UnsupportedModelError: The file's version or the type of a tensor is not supported.
    """
    try:
        return _parse(_map(path))
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{path}: {error}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
