"""Probes of a family's weight loading: weights with one fault.

The weights are changed between the checkpoint and the hook, so no checkpoint is copied on
disk, however large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import mlx.core as mx
import mlx.nn as nn

from ..checkpoint.lazy_tensor import LazyTensor
from ..checkpoint.weights import Weights
from ..errors import WeightError
from .subject import Subject

Change: TypeAlias = Callable[[Weights], Weights]

STRAY = "neve.testing.stray.weight"


def victim(subject: Subject) -> str:
    """Return the name of a tensor that the model needs, of a layer if possible."""
    names = sorted(subject.open().weights)
    return next((name for name in names if ".layers." in name), names[0])


def without(name: str) -> Change:
    """Return a change that drops a tensor."""
    return lambda weights: weights.renamed(lambda other: None if other == name else other)


def with_stray(name: str) -> Change:
    """Return a change that adds a tensor without a parameter, of the shape of `name`."""

    def add(weights: Weights) -> Weights:
        stray = LazyTensor(weights.shape(name), mx.float32, lambda: weights[name])
        return attrs.evolve(weights, tensors={**weights._tensors, STRAY: stray})

    return add


def reshaped(name: str) -> Change:
    """Return a change that doubles a tensor's rows."""
    return lambda weights: weights.mapped(
        lambda other, tensor: mx.concatenate([tensor, tensor]) if other == name else tensor
    )


def built(subject: Subject, config: Any) -> nn.Module:
    """Return the model of a config with the checkpoint's weights, in float32.

    Raises:
        WeightError: The weights do not fit the config.
    """
    weights = attrs.evolve(subject.open().weights, dtype=mx.float32)
    return subject.family.build_model(config, weights)


def error(subject: Subject, change: Change) -> WeightError:
    """Return the error of building the model from changed weights.

    Raises:
        AssertionError: The model was built.
    """
    config = subject.family.parse_config(subject.config)
    try:
        subject.family.build_model(config, change(subject.open().weights))
    except WeightError as error:
        return error
    raise AssertionError(f"{subject.family.name} was built from weights that do not fit")


def names(findings: Sequence[str], name: str) -> bool:
    """Return whether one of the findings names `name`, under any prefix."""
    tail = ".".join(name.split(".")[-3:])
    return any(tail in finding for finding in findings)
