"""The models to train: those that the checkpoints' config.json files describe.

A family is trained as text only, and released in the layout of its published checkpoints:
multimodal ones get a vision tower, tiny and untrained, that loaders have to skip.
"""

from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import nn
from transformers.modeling_layers import MtpModel
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeSparseMoeBlock


class Gemma4(hf.Gemma4ForCausalLM):
    """Gemma 4 with layer scalars other than one, as published checkpoints have them."""

    def __init__(self, config: hf.Gemma4TextConfig) -> None:
        super().__init__(config)
        for index, layer in enumerate(self.model.layers):
            layer.layer_scalar.fill_(round(1.0 - 0.03 * (index % 4), 3))


class MuseGlimmer(nn.Module):
    """The text model and its head; transformers has no text-only class of this family."""

    def __init__(self, config: hf.MuseGlimmerTextConfig) -> None:
        super().__init__()
        self.config = config
        self.model = hf.MuseGlimmerTextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        nn.init.normal_(self.lm_head.weight, std=config.initializer_range)


# model_type -> the text-only class
TEXT_MODELS = {
    "gemma4": Gemma4,
    "lfm2": hf.Lfm2ForCausalLM,
    "lfm2_moe": hf.Lfm2MoeForCausalLM,
    "muse_glimmer": MuseGlimmer,
    "nemotron_h": hf.NemotronHForCausalLM,
    "qwen3": hf.Qwen3ForCausalLM,
    "qwen3_5": hf.Qwen3_5ForCausalLM,
    "qwen3_5_moe": hf.Qwen3_5MoeForCausalLM,
}


def read_config(folder: Path) -> hf.PreTrainedConfig:
    """Return the configuration of a checkpoint."""
    return hf.AutoConfig.from_pretrained(folder)


def has_mtp(config: hf.PreTrainedConfig) -> bool:
    """Return whether there is a head that drafts the token after next."""
    return bool(getattr(config.get_text_config(), "mtp_num_hidden_layers", 0))


def build(config: hf.PreTrainedConfig, seed: int) -> tuple[nn.Module, MtpModel | None]:
    """Return the untrained text model, and its head that drafts if it has one."""
    torch.manual_seed(seed)
    text_config = config.get_text_config()
    text_config._attn_implementation = "sdpa"
    model = TEXT_MODELS[config.model_type](text_config)
    return model, _build_mtp(model) if has_mtp(config) else None


def _build_mtp(model: nn.Module) -> MtpModel:
    mtp = MtpModel(model, 1)
    for module in mtp.layers.modules():
        if isinstance(module, Qwen3_5MoeSparseMoeBlock):  # MtpModel leaves it as allocated
            for weight in (*module.experts.parameters(), module.gate.weight):
                nn.init.normal_(weight, std=model.config.initializer_range)
    return mtp


def release_model(config: hf.PreTrainedConfig) -> Any:
    """Return an untrained model in the layout of the published checkpoints."""
    torch.manual_seed(1234)  # of the vision tower
    return getattr(hf, config.architectures[0])(config)


def project(model: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Return the logits `[..., vocab]` of hidden states `[..., hidden]`."""
    logits = model.lm_head(hidden) * getattr(model.config, "output_multiplier", 1.0)
    cap = getattr(model.config, "final_logit_softcapping", None)
    return cap * torch.tanh(logits / cap) if cap else logits


def draft_states(mtp: MtpModel, hidden: torch.Tensor, next_ids: torch.Tensor) -> torch.Tensor:
    """Return the states from which the token after next is drafted.

    Args:
        mtp: The head, tied to its model's embeddings.
        hidden: `[batch, T, hidden]`, the model's states after its final norm.
        next_ids: `[batch, T]`, the token that follows each state.

    Returns:
        `[batch, T, hidden]`, to be projected as the model's own states are.
    """
    layer = mtp.layers[0]
    embedded = mtp.embed_tokens(next_ids)
    positions = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)[None]
    mixed = layer.eh_proj(torch.cat([layer.enorm(embedded), layer.hnorm(hidden)], -1))
    rotary = mtp.rotary_emb(embedded, position_ids=positions[None].expand(3, -1, -1))
    drafted = layer.mtp_block(
        mixed, position_embeddings=rotary, attention_mask=None, position_ids=positions
    )
    return layer.post_norm(drafted[0] if isinstance(drafted, tuple) else drafted)
