"""What is known of a model before its first weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx

from ..catalogue import discover
from ..checkpoint.checkpoint import Checkpoint, open_checkpoint
from ..checkpoint.identity import WeightIdentity
from ..engine.persistence import Subject
from ..errors import ConfigError
from ..log import get_logger
from ..metal.runtime import device
from ..settings import Resolved, Settings, resolve
from ..text.gguf_tokenizer import gguf_tokenizer
from ..text.tokenizer import Tokenizer


@attrs.frozen(eq=False)
class Examined:
    """What is known of a model before its first weight is read.

    Attributes:
        subject: The model, as the cold tier tells it from others.
        checkpoint: Its checkpoint.
        settings: With what its config.json sets.
    """

    subject: Subject
    checkpoint: Checkpoint
    settings: Settings

    @property
    def dtype(self) -> mx.Dtype:
        """Dtype of the model's arithmetic and of its cache."""
        return getattr(mx, self.subject.dtype)

    def tokenizer(self) -> Tokenizer:
        """Read the tokenizer."""
        return tokenizer_of(self.checkpoint)


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """Read the tokenizer of a checkpoint."""
    if checkpoint.gguf_metadata is not None:
        return gguf_tokenizer(checkpoint.gguf_metadata)
    return Tokenizer.from_directory(
        checkpoint.path,
        config=checkpoint.config,
        generation_config=checkpoint.generation_config or {},
    )


def examine_path(path: Path, given: Settings | None, overrides: Mapping[str, Any]) -> Examined:
    """Examine a checkpoint on this machine.

    Args:
        path: What `resolve_checkpoint` returned.
        given: Settings.
        overrides: Fields of settings.
    """
    # before the first weight is read: what is vouched for later is what was read
    weights = WeightIdentity.stat(path)
    checkpoint = open_checkpoint(path, dtype=None)
    settings = _settings(resolve(given, overrides, checkpoint.config))
    return Examined(_subject(checkpoint, weights, settings), checkpoint, settings)


def _subject(checkpoint: Checkpoint, weights: WeightIdentity, settings: Settings) -> Subject:
    family = discover().for_model_type(_model_type(checkpoint))
    config = family.parse_config(checkpoint.config)
    return Subject(
        family=family,
        config=config,
        raw_config=checkpoint.config,
        layout=family.declare_cache_groups(config),
        block_size=settings.cache.paged_block_size,
        dtype=_compute_dtype(settings, checkpoint),
        weights=weights,
    )


def _settings(resolved: Resolved) -> Settings:
    for sentence in resolved.ignored:
        get_logger("loading").warning("loading.setting.ignored", reason=sentence)
    return resolved.settings


def _model_type(checkpoint: Checkpoint) -> str:
    model_type = checkpoint.config.get("model_type")
    if not isinstance(model_type, str):
        raise ConfigError("model_type", f"must be a string, got {model_type!r}")
    return model_type


def _compute_dtype(settings: Settings, checkpoint: Checkpoint) -> str:
    """Return the dtype of arithmetic: on a CPU, products in 16 bits are far slower."""
    if settings.model.dtype is not None:
        return settings.model.dtype
    if not device.is_gpu():
        return "float32"
    stored = checkpoint.stored_dtype or mx.bfloat16
    return str(stored).removeprefix("mlx.core.")
