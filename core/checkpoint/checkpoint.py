"""A checkpoint: its config, its weights and the place of its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx

from ..errors import CheckpointError, ConfigError
from .gguf_file import open_gguf
from .quantization import parse_quantization
from .shards import open_shards
from .strict_json import JSONError, parse_object
from .weights import Format, Weights

CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"

_DTYPES: Mapping[str, mx.Dtype] = {
    "float32": mx.float32,
    "float16": mx.float16,
    "bfloat16": mx.bfloat16,
}


@attrs.frozen(eq=False)
class Checkpoint:
    """An opened checkpoint, of which only headers and configs have been read.

    Attributes:
        path: The directory, or the GGUF file.
        format: `safetensors` or `gguf`.
        config: The parsed config.json; for GGUF, a config made of the metadata.
        generation_config: The parsed generation_config.json; None without one.
        weights: The named tensors.
        gguf_metadata: The key-value pairs of a GGUF file, decoded on demand; else None.
        tokenizer_dir: Folder of the tokenizer's files; None for GGUF, whose file contains the
            tokenizer.
    """

    path: Path
    format: Format
    config: Mapping[str, Any] = attrs.field(repr=False)
    generation_config: Mapping[str, Any] | None = attrs.field(repr=False)
    weights: Weights
    gguf_metadata: Mapping[str, Any] | None = attrs.field(repr=False)
    tokenizer_dir: Path | None

    @property
    def stored_dtype(self) -> mx.Dtype | None:
        """The dtype that config.json names for the weights; None if no key names one.

        Raises:
            ConfigError: The dtype is not float32, float16 or bfloat16.
        """
        return _stored_dtype(self.config)


def _stored_dtype(config: Mapping[str, Any]) -> mx.Dtype | None:
    text_config = config.get("text_config")
    for part in (config, text_config if isinstance(text_config, dict) else {}):
        for key in ("dtype", "torch_dtype"):
            name = part.get(key)
            if name is None:
                continue
            if not isinstance(name, str) or name not in _DTYPES:
                raise ConfigError(key, f"must be one of {', '.join(_DTYPES)}, got {name!r}")
            return _DTYPES[name]
    return None


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG_NAME
    try:
        return parse_object(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{directory}: there is no {CONFIG_NAME}") from error
    except JSONError as error:
        raise ConfigError(error.key, error.reason) from error


def _read_generation_config(directory: Path) -> dict[str, Any] | None:
    path = directory / GENERATION_CONFIG_NAME
    try:
        return parse_object(path.read_bytes())
    except FileNotFoundError:
        return None
    except JSONError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _open_directory(path: Path, dtype: mx.Dtype | None) -> Checkpoint:
    config = _read_config(path)
    return Checkpoint(
        path=path,
        format="safetensors",
        config=config,
        generation_config=_read_generation_config(path),
        weights=Weights("safetensors", parse_quantization(config), dtype, open_shards(path)),
        gguf_metadata=None,
        tokenizer_dir=path,
    )


def _open_gguf(path: Path, dtype: mx.Dtype | None) -> Checkpoint:
    file = open_gguf(path)
    return Checkpoint(
        path=path,
        format="gguf",
        config=file.config,
        generation_config=None,
        weights=Weights("gguf", None, dtype, file.tensors),
        gguf_metadata=file.metadata,
        tokenizer_dir=None,
    )


def open_checkpoint(path: Path, *, dtype: mx.Dtype | None) -> Checkpoint:
    """Open a checkpoint directory or a GGUF file; no weight is read, no array is created.

    Args:
        path: Path from `resolve_checkpoint`.
        dtype: Dtype to which floating weights will be cast; None keeps the stored dtypes.

    Raises:
            ConfigError: config.json or its quantisation is malformed.
        CheckpointError: A file is missing or malformed.
        UnsupportedModelError: The format of the weights is not supported.
    """
    if path.is_dir():
        return _open_directory(path, dtype)
    return _open_gguf(path, dtype)
