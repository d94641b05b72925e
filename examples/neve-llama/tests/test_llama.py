"""Tests of Llama alone: its hooks, its rotary rules, old weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import neve
import neve_llama.plugin
from neve.catalogue import load_family
from neve.coldtier.admission.allowlist import COLD_RESTORE_FAMILIES
from neve.contract.errors import UnsupportedModelError
from neve_llama.config import parse

MANDATORY = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "vocab_size": 49152,
}
IDS = list(range(40))


def logits(path: Path, ids: list[int]) -> np.ndarray:
    with neve.load(path, dtype="float32", paged_cache_memory_mb=8) as model:
        return np.array(model.logits(ids))


def test_absent_keys_have_the_defaults_of_the_released_configs():
    """FW-7: five keys suffice; heads and head width follow from them."""
    config = parse(MANDATORY)

    assert (config.num_key_value_heads, config.head_dim) == (9, 64)
    assert (config.rope.theta, config.max_position_embeddings) == (10_000.0, 2048)


@pytest.mark.parametrize(
    "keys", [{"hidden_act": "gelu"}, {"rope_scaling": {"rope_type": "longrope"}}]
)
def test_variants_are_refused(keys: dict[str, Any]):
    """FW-7: unsupported variants are refused before a weight is read."""
    with pytest.raises(UnsupportedModelError):
        parse(MANDATORY | keys)


def test_it_says_yes_and_is_on_no_list():
    """FW-5: a third party's family states that it can persist, and must earn permission."""
    assert load_family("llama", neve_llama.plugin).cold_restore_eligibility(None).eligible
    assert "llama" not in COLD_RESTORE_FAMILIES


@pytest.mark.mlx
@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.rotary_emb.inv_freq", "rope_freqs.weight"]
)
def test_old_checkpoints_carry_frequencies(tiny_llama: Path, tmp_path: Path, name: str):
    """FW-7: frequencies are no parameters; GGUF's `rope_freqs` are divisors."""
    shutil.copytree(tiny_llama, tmp_path, dirs_exist_ok=True)
    stored: Any = mx.load(str(tmp_path / "model.safetensors"))
    # twice the wavelength, equal to the checkpoint's own linear rule
    stored[name] = mx.full((16,), 2.0)
    mx.save_safetensors(str(tmp_path / "old.safetensors"), stored)
    (tmp_path / "model.safetensors").unlink()

    assert np.array_equal(logits(tmp_path, IDS), logits(tiny_llama, IDS))


@pytest.mark.mlx
def test_tokens_are_seen_by_later_ones_only(tiny_llama: Path):
    """FW-7: a changed token changes the logits from its position on, and none before."""
    changed = logits(tiny_llama, [*IDS[:30], 200, *IDS[31:]])
    differs = np.abs(logits(tiny_llama, IDS) - changed).max(axis=-1) > 1e-4

    assert differs.tolist() == [False] * 30 + [True] * 10
