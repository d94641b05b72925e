"""Qwen3's config.json: defaults, older and newer keys, variants that are refused."""

from __future__ import annotations

from typing import Any

import pytest

import neve_qwen3.plugin
from neve.catalogue import load_family
from neve.contract.cache_spec import FullAttention, uniform_layout
from neve.contract.errors import ConfigError, UnsupportedModelError
from neve.contract.forward import RopeSpec
from neve.contract.hooks import RequiredHooks
from neve_qwen3.config import parse

# pyright checks names, arguments and results of the required hooks here
hooks: RequiredHooks = neve_qwen3.plugin
FAMILY = load_family("qwen3", hooks)

MANDATORY = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "vocab_size": 100,
}


def test_absent_keys_have_the_defaults_of_the_released_configs():
    """FA-1: five keys suffice; heads and head width follow from them."""
    config = parse(MANDATORY)

    assert (config.num_key_value_heads, config.head_dim) == (8, 32)
    assert (config.rms_norm_eps, config.max_position_embeddings) == (1e-6, 32768)
    assert not config.tie_word_embeddings
    assert not config.attention_bias
    assert config.rope == RopeSpec(32, 1e6)


@pytest.mark.parametrize("key", [*MANDATORY, "max_position_embeddings"])
def test_sizes_are_positive(key: str):
    """FA-1: a size of zero is a ConfigError that names the key."""
    with pytest.raises(ConfigError, match=key):
        parse(MANDATORY | {key: 0})


def test_heads_may_be_wider_than_the_hidden_state(raw_config: dict[str, Any]):
    """FA-1: `num_attention_heads * head_dim` need not be `hidden_size`."""
    config = parse(raw_config)

    assert config.num_attention_heads * config.head_dim > config.hidden_size
    assert hooks.declare_cache_groups(config) == uniform_layout(FullAttention(2, 64), 6)


@pytest.mark.parametrize(
    ("keys", "theta"),
    [
        ({"rope_theta": 5e5}, 5e5),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5),
        ({"rope_theta": 1, "rope_parameters": {"rope_theta": 5e5}}, 5e5),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": None}}, 5e5),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5),
    ],
)
def test_the_base_stands_in_either_place(keys: dict[str, Any], theta: float):
    """FA-1: newer configs keep `rope_theta` in `rope_parameters`, which wins."""
    assert parse(MANDATORY | keys).rope == RopeSpec(32, theta)


def test_both_names_of_the_scaling_rule_mean_the_same():
    """FA-1: `rope_scaling` is the older name of `rope_parameters`."""
    rule = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
    older, newer = (
        parse(MANDATORY | {key: rule}) for key in ("rope_scaling", "rope_parameters")
    )

    assert older.rope == newer.rope != RopeSpec(32, 1e6)


@pytest.mark.parametrize(
    "keys",
    [
        {"use_sliding_window": True},
        {"hidden_act": "gelu"},
        {"rope_scaling": {"type": "longrope"}},
    ],
)
def test_variants_are_refused(keys: dict[str, Any]):
    """FA-1: what is not implemented is refused before a weight is read."""
    with pytest.raises(UnsupportedModelError):
        parse(MANDATORY | keys)


def test_prefixes_may_come_back_from_disk():
    """CT-1: blocks are all there is of a prefix."""
    assert FAMILY.cold_restore_eligibility(None).eligible
