"""A GGUF file: lazy tensors with Hugging Face names, and a config from its metadata."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import gguf
import mlx.core as mx
import numpy as np

from ..errors import CheckpointError, WeightError
from .gguf_config import gguf_config
from .gguf_header import GGUFTensor, read_gguf_header
from .gguf_names import hub_names
from .lazy_tensor import LazyTensor


@attrs.frozen(eq=False)
class GGUFFile:
    """The parts of a GGUF file that a checkpoint needs.

    Attributes:
        config: The counterpart of a config.json.
        metadata: The file's own key-value pairs, decoded on demand.
        tensors: Hugging Face name -> tensor; reading gives float32.
    """

    config: Mapping[str, Any]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, LazyTensor]


def _dequantise(buffer: mmap.mmap, tensor: GGUFTensor) -> mx.array:
    raw = np.frombuffer(buffer, np.uint8, tensor.num_bytes, tensor.offset)
    rows = raw.reshape(*tensor.shape[:-1], -1)
    # Scales that are not finite are kept, as they are from safetensors.
    with np.errstate(all="ignore"):
        return mx.array(gguf.dequantize(rows, tensor.kind))


def open_gguf(path: Path) -> GGUFFile:
    """Open a GGUF file; each tensor is dequantised when it is read.

    Some architectures permute the rows of rotary projections in GGUF. The permutation is kept;
    see `unpermute_rotary`.

    Raises:
        CheckpointError: The file is truncated, malformed or no language model.
        UnsupportedModelError: The type of a tensor is not supported.
    """
    header = read_gguf_header(path)
    try:
        config = gguf_config(header)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    names = hub_names(header.tensors)
    tensors = {
        names[name]: LazyTensor(
            tensor.shape, mx.float32, partial(_dequantise, header.buffer, tensor)
        )
        for name, tensor in header.tensors.items()
    }
    return GGUFFile(config, header.metadata, tensors)


def unpermute_rotary(w: mx.array, num_heads: int) -> mx.array:
    """Undo the row order of q and k projections in GGUF's llama architecture.

    GGUF stores each head's rows so that rotary pairs are neighbours, `(2i, 2i+1)`; Hugging
    Face checkpoints have them half a head apart, `(i, i + D/2)`.

    Args:
        w: Weight `[H*D, in]` or bias `[H*D]`.
        num_heads: `H`; for k, the number of key heads.

    Raises:
        WeightError: The rows do not divide into heads of an even width.
    """
    if num_heads < 1 or w.shape[0] % (2 * num_heads):
        raise WeightError(f"{w.shape[0]} rows are not {num_heads} heads of an even width")
    pairs = w.reshape(num_heads, w.shape[0] // num_heads // 2, 2, *w.shape[1:])
    return pairs.swapaxes(1, 2).reshape(w.shape)
