"""Quantised copies of unquantised checkpoints, in MLX's own format."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import mlx.core as mx

from ..checkpoint.parameters import Quantizable
from ..checkpoint.quantization import Mode
from .subject import Subject

SAFETENSORS = "*.safetensors*"


def _layers(subject: Subject) -> set[str]:
    """Return the paths of the layers with a quantised form."""
    config = subject.family.parse_config(subject.config)
    model = subject.family.build_model(config, subject.open().weights)
    return {path for path, layer in model.named_modules() if isinstance(layer, Quantizable)}


def _quantise(
    tensors: dict[str, mx.array], layers: set[str], mode: Mode, group_size: int, bits: int
) -> dict[str, mx.array]:
    quantised: dict[str, mx.array] = {}
    for name, tensor in tensors.items():
        path = name.removesuffix(".weight")
        if path not in layers or tensor.shape[-1] % group_size:
            quantised[name] = tensor
            continue
        parts = mx.quantize(tensor, group_size=group_size, bits=bits, mode=mode)
        suffixes = ("weight", "scales", "biases")
        quantised.update(
            {f"{path}.{s}": part for s, part in zip(suffixes, parts, strict=False)}
        )
    return quantised


def quantise_checkpoint(
    subject: Subject, target: Path, *, mode: Mode, group_size: int, bits: int
) -> None:
    """Write a quantised copy of a subject's safetensors checkpoint.

    A linear layer or embedding is quantised if the checkpoint names its tensor as the model
    does and its rows are whole groups. Goldens, which hold for the unquantised model, are not
    copied.

    Args:
        subject: The checkpoint and its family.
        target: An empty folder.
        mode: Mode of the quantisation.
        group_size: Consecutive elements of a row that share a scale.
        bits: Bits of an element.
    """
    weights = subject.open().weights
    tensors = {name: weights[name] for name in weights}
    quantised = _quantise(tensors, _layers(subject), mode, group_size, bits)
    mx.save_safetensors(str(target / "model.safetensors"), quantised, {"format": "mlx"})
    left = shutil.ignore_patterns(SAFETENSORS, "golden.json", "logits.npz")
    shutil.copytree(subject.path, target, ignore=left, dirs_exist_ok=True)
    how = {"group_size": group_size, "bits": bits, "mode": mode}
    config = dict(subject.config) | {"quantization": how}
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
