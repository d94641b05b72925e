"""Saves a trained model as published checkpoints of its family are laid out."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedConfig
from transformers.modeling_layers import MtpModel

from .families import read_config, release_model
from .tokenizer import FILES

Weights = dict[str, torch.Tensor]

# What published checkpoints keep in float32.
FLOAT32_NAMES = ("A_log", "e_score_correction_bias", "expert_bias", "linear_attn.norm.weight")
FUSED_EXPERTS = ("experts.gate_up_proj", "experts.down_proj")
MTP_NAMES = {
    "enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    "eh_proj.weight": "mtp.fc.weight",
    "post_norm.weight": "mtp.norm.weight",
}


def save(
    model: nn.Module, mtp: MtpModel | None, pattern: Path, tokenizer: Path, folder: Path
) -> None:
    """Write a checkpoint; leave the model as it is.

    Args:
        model: The trained text model.
        mtp: Its head that drafts, or None.
        pattern: The checkpoint to take config.json and generation_config.json from.
        tokenizer: The folder to take the tokenizer's files from.
        folder: Where to write.
    """
    config = read_config(pattern)
    trained = _trained_weights(model, is_multimodal=config.get_text_config() is not config)
    _released_model(config, trained).save_pretrained(folder)
    path = folder / "model.safetensors"
    weights = load_file(path)
    if config.model_type == "qwen3_5_moe":
        _fuse_experts(weights, trained)
    _restore_float32(weights, trained)
    if mtp is not None:
        weights |= _mtp_weights(mtp)
    contiguous = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(contiguous, path, metadata={"format": "pt"})
    _copy(pattern, folder, "config.json", "generation_config.json")
    _copy(tokenizer, folder, *FILES)


def _trained_weights(model: nn.Module, is_multimodal: bool) -> Weights:
    """Return the weights in float32, under the names of the published model class."""
    prefix = "model.language_model." if is_multimodal else "model."
    return {
        prefix + name.removeprefix("model.") if name.startswith("model.") else name: (
            weight.detach().to("cpu", torch.float32)
        )
        for name, weight in model.state_dict().items()
    }


def _released_model(config: PreTrainedConfig, trained: Weights) -> Any:
    released = release_model(config)
    missing, unexpected = released.load_state_dict(trained, strict=False)
    lacking = [n for n in missing if "language_model" in n and "embed_scale" not in n]
    if unexpected or lacking:
        raise ValueError(f"the layouts differ: {unexpected} left over, {lacking} missing")
    return released.to(torch.bfloat16)


def _fuse_experts(weights: Weights, trained: Weights) -> None:
    """Put the experts back into one tensor a projection; `save_pretrained` splits them."""
    for name, weight in trained.items():
        if not name.endswith(FUSED_EXPERTS):
            continue
        prefix = name[: name.rindex(".") + 1]
        for split in [n for n in weights if n.startswith(prefix) and n[len(prefix)].isdigit()]:
            del weights[split]
        weights[name] = weight.to(torch.bfloat16)


def _restore_float32(weights: Weights, trained: Weights) -> None:
    for name in weights:
        if name.endswith(FLOAT32_NAMES):
            weights[name] = trained[name.replace("backbone.", "model.")].clone()


def _mtp_weights(mtp: MtpModel) -> Weights:
    return {
        MTP_NAMES.get(name) or "mtp.layers.0." + name.removeprefix("mtp_block."): (
            weight.detach().to("cpu", torch.bfloat16)
        )
        for name, weight in mtp.layers[0].state_dict().items()
    }


def _copy(source: Path, target: Path, *names: str) -> None:
    for name in names:
        shutil.copyfile(source / name, target / name)
