"""The subject of the conformance suite: a family with one of its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ..catalogue import Family, discover
from ..checkpoint.checkpoint import Checkpoint, open_checkpoint
from ..checkpoint.resolve import resolve_checkpoint
from ..errors import CheckpointError, FamilyNotInstalledError
from .golden import Goldens, read_goldens

if TYPE_CHECKING:
    from ..model import Model

FLOAT32_BYTES = 4
CACHE_TOKENS = 8192
"""Capacity of a model's cache in tokens, unless a test sets another."""


@attrs.frozen(eq=False)
class Subject:
    """A family under test.

    Attributes:
        family: The family.
        path: The family's checkpoint.
        config: The parsed config.json of the checkpoint.
        goldens: A reference's answers for the checkpoint, or None.
    """

    family: Family
    path: Path
    config: Mapping[str, Any] = attrs.field(repr=False)
    goldens: Goldens | None = attrs.field(repr=False)

    @classmethod
    def of(cls, name: str, checkpoint_path: Path) -> Subject:
        """Find an installed family and open its checkpoint.

        Args:
            name: The family's name.
            checkpoint_path: A checkpoint folder or a GGUF file.

        Raises:
            PluginError: The family's plugin was refused.
            FamilyNotInstalledError: No family has that name.
            CheckpointError: The checkpoint cannot be read, or belongs to another family.
        """
        family = find_family(name)
        checkpoint = open_checkpoint(resolve_checkpoint(checkpoint_path), dtype=None)
        model_type = checkpoint.config.get("model_type")
        if model_type not in family.info.model_types:
            raise CheckpointError(
                f"{checkpoint_path}: model type {model_type!r} is not of the family "
                f"{name!r}, which serves {', '.join(family.info.model_types)}"
            )
        return cls(family, checkpoint.path, checkpoint.config, read_goldens(checkpoint.path))

    def open(self) -> Checkpoint:
        """Open the checkpoint for the calling thread; no weight is read."""
        return open_checkpoint(self.path, dtype=None)

    def cache_mb(self, num_tokens: int) -> int:
        """Return the memory, in whole MiB, of `num_tokens` tokens in float32."""
        layout = self.family.declare_cache_groups(self.family.parse_config(self.config))
        token_bytes = sum(
            layout.block_bytes(group, 1, FLOAT32_BYTES) for group in range(len(layout.groups))
        )
        return max(1, math.ceil(num_tokens * token_bytes / 2**20))

    def load(self, **settings: Any) -> Model:
        """Load the checkpoint in float32, where paths differ by less than any margin.

        Args:
            **settings: As in `neve.load`; the cache is block-paged by default.
        """
        from ..loading import load

        defaults: dict[str, Any] = {
            "dtype": "float32",
            "use_block_paged_cache": True,
            "paged_cache_memory_mb": self.cache_mb(CACHE_TOKENS),
        }
        return load(self.path, **(defaults | settings))


def find_family(name: str) -> Family:
    """Return an installed family.

    Raises:
        PluginError: The family's plugin was refused.
        FamilyNotInstalledError: No family has that name.
    """
    catalogue = discover()
    if name in catalogue.families:
        return catalogue.families[name]
    for error in catalogue.refused:
        if error.plugin == name:
            raise error
    raise FamilyNotInstalledError(name, f"neve-{name}", sorted(catalogue.families))
