"""Tiny checkpoints with random weights and a byte tokenizer: tests without downloads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import attrs
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ..errors import WeightError
from .subject import find_family

BYTES = 256
"""Tokens of `byte_tokenizer`, and so the least `vocab_size` of a tiny checkpoint."""


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with one token a byte, `BYTES` tokens in all."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: i for i, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@attrs.frozen(eq=False)
class RandomWeights:
    """Random weights for every parameter of a model; implements `contract.weights.Weights`.

    Attributes:
        scale: Standard deviation of the elements of matrices.
        tensors: The assigned tensors, under the names of a checkpoint.
    """

    scale: float
    tensors: dict[str, mx.array] = attrs.field(factory=dict)
    _stacked: set[str] = attrs.field(factory=set)

    format: Literal["safetensors"] = attrs.field(default="safetensors", init=False)

    def __getitem__(self, name: str) -> mx.array:
        raise WeightError(f"random weights have no {name}: only load_into gives tensors")

    def __contains__(self, name: object) -> bool:
        return False

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def shape(self, name: str) -> tuple[int, ...]:
        """Raise: no tensor exists before `load_into`."""
        return self[name].shape

    def renamed(self, fn: Callable[[str], str | None]) -> Self:
        """Return the weights: the written checkpoint uses the names of the parameters."""
        return self

    def mapped(self, fn: Callable[[str, mx.array], mx.array]) -> Self:
        """Return the weights: random values need no conversion."""
        return self

    def stacked(self, component: str) -> Self:
        """Return the weights, which will store the rows of `….component.rest` separately."""
        self._stacked.add(component)
        return self

    def split(self, fn: Callable[[str], Sequence[str] | None]) -> Self:
        """Return the weights: the written checkpoint stores the parts separately."""
        return self

    def load_into(self, module: nn.Module, *, keep_float32: Sequence[str] = ()) -> None:
        """Give every parameter of `module` random values, float32."""
        given: dict[str, mx.array] = {}
        parameters: Any = tree_flatten(module.parameters())
        for name, parameter in parameters:
            given[name] = self._random(name, parameter.shape)
        module.load_weights(list(given.items()))
        for name, tensor in given.items():
            self.tensors.update(self._stored(name, tensor))

    def _random(self, name: str, shape: tuple[int, ...]) -> mx.array:
        noise = self.scale * mx.random.normal(shape)
        # weights of norms lie around one
        return 1 + noise if len(shape) == 1 and name.endswith("weight") else noise

    def _stored(self, name: str, tensor: mx.array) -> dict[str, mx.array]:
        for component in self._stacked:
            before, found, after = f".{name}".partition(f".{component}.")
            if found:
                path = f"{before}{found}".removeprefix(".")
                return {f"{path}{i}.{after}": row for i, row in enumerate(tensor)}
        return {name: tensor}


def write_checkpoint(
    folder: Path,
    family: str,
    config: Mapping[str, Any],
    *,
    tensors: Mapping[str, mx.array] | None = None,
    scale: float = 0.1,
    seed: int = 0,
) -> Path:
    """Write a checkpoint of a family, with a tokenizer of bytes.

    Args:
        folder: An existing folder.
        family: Name of an installed family.
        config: Content of config.json.
        tensors: The weights under the checkpoint's names; None for random weights with the
            names and shapes of the model's parameters. A family whose checkpoints have other
            shapes needs tensors of its own.
        scale: Standard deviation of random matrices.
        seed: Seed of random weights.

    Returns:
        The folder.

    Raises:
        PluginError: The family's plugin was refused.
        FamilyNotInstalledError: No family has that name.
        CheckpointError: The family refuses the config, or needs weights of its own.
    """
    if tensors is None:
        plugin, weights = find_family(family), RandomWeights(scale)
        mx.random.seed(seed)
        plugin.build_model(plugin.parse_config(dict(config)), weights)
        tensors = weights.tensors
    (folder / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tensors), {"format": "mlx"})
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
