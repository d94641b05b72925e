"""LFM2's config.json: defaults, older and newer keys, contradictions, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import neve_lfm2.plugin
from neve.catalogue import load_family
from neve.contract.cache_spec import (
    CacheLayout,
    FullAttention,
    Owned,
    Recurrent,
    RecurrentState,
    StateTensor,
)
from neve.contract.errors import ConfigError, UnsupportedModelError
from neve.contract.forward import RopeSpec
from neve.contract.hooks import RequiredHooks
from neve.contract.sidecar import SidecarLayout, SidecarPolicy, SidecarTensor
from neve_lfm2.config import ExpertsConfig, parse

# pyright checks names, arguments and results of the required hooks here
hooks: RequiredHooks = neve_lfm2.plugin
FAMILY = load_family("lfm2", hooks)

DENSE = {
    "model_type": "lfm2",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "intermediate_size": 1536,
    "num_attention_heads": 16,
    "vocab_size": 100,
    "full_attn_idxs": [2],
}
MOE = DENSE | {"model_type": "lfm2_moe", "moe_intermediate_size": 64, "num_experts": 8}
TYPES = ("conv", "conv", "full_attention", "conv")


def test_absent_keys_have_the_makers_defaults():
    """FA-5: what a config.json leaves out is what the makers' config class says."""
    config = parse(DENSE)

    assert (config.num_key_value_heads, config.head_dim) == (8, 16)
    assert (config.norm_eps, config.max_position_embeddings) == (1e-5, 128_000)
    assert (config.conv_length, config.conv_bias) == (3, False)
    assert config.tie_word_embeddings
    assert config.rope == RopeSpec(16, 1e6)
    assert config.experts is None


def test_absent_keys_of_the_experts():
    """FA-6: the same for the mixture of experts, whose dense width is never adjusted."""
    config = parse(MOE)

    assert config.intermediate_size == 1536
    assert config.experts == ExpertsConfig(
        num_dense_layers=2,
        num_experts=8,
        num_experts_per_tok=4,
        intermediate_size=64,
        use_expert_bias=True,
        norm_topk_prob=True,
        routed_scaling_factor=1.0,
    )


@pytest.mark.parametrize(
    "key",
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "conv_L_cache"],
)
def test_sizes_are_positive(key: str):
    """FA-5: a size of zero is a ConfigError that names the key."""
    with pytest.raises(ConfigError, match=key):
        parse(DENSE | {key: 0})


@pytest.mark.parametrize("key", ["intermediate_size", "moe_intermediate_size", "num_experts"])
def test_sizes_of_experts_are_needed(key: str):
    """FA-6: a width that is missing or null is a ConfigError that names the key."""
    for raw in (MOE | {key: None}, {k: v for k, v in MOE.items() if k != key}):
        with pytest.raises(ConfigError, match=key):
            parse(raw)


@pytest.mark.parametrize(
    ("keys", "width"),
    [
        ({}, 1024),
        ({"block_auto_adjust_ff_dim": False}, 1536),
        ({"block_multiple_of": 100}, 1100),
        ({"block_ffn_dim_multiplier": 1.5}, 1536),
        ({"block_ffn_dim_multiplier": None}, 1024),
        ({"block_ff_dim": 12288}, 8192),
        ({"intermediate_size": None, "block_ff_dim": 12288}, 8192),
        ({"intermediate_size": 12288, "block_ff_dim": None}, 8192),
    ],
)
def test_width_of_the_dense_mlp(keys: dict[str, Any], width: int):
    """FA-5: two thirds, times a factor, rounded up to a multiple; the older name wins."""
    assert parse(DENSE | keys).intermediate_size == width


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"layer_types": TYPES, "full_attn_idxs": None},
        {"layer_types": TYPES},
    ],
)
def test_both_ways_to_name_the_layers(keys: dict[str, Any]):
    """FA-5: `full_attn_idxs` and `layer_types` say the same."""
    assert parse(DENSE | keys).layer_types == TYPES


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"full_attn_idxs": None}, "layer_types"),
        ({"full_attn_idxs": [4]}, "full_attn_idxs"),
        ({"full_attn_idxs": [-1]}, "full_attn_idxs"),
        ({"full_attn_idxs": [1], "layer_types": TYPES}, "full_attn_idxs"),
        ({"layer_types": TYPES[:3]}, "layer_types"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"text_config": 13}, "text_config"),
        ({"rope_parameters": {"rope_theta": "long"}}, "rope_theta"),
    ],
)
def test_what_contradicts_itself_is_refused(keys: dict[str, Any], named: str):
    """FA-5: the error names the key, before a weight is read."""
    with pytest.raises(ConfigError, match=named):
        parse(DENSE | keys)


def test_more_experts_chosen_than_there_are():
    """FA-6: `num_experts_per_tok` is at most `num_experts`."""
    with pytest.raises(ConfigError, match="num_experts_per_tok"):
        parse(MOE | {"num_experts_per_tok": 9})


@pytest.mark.parametrize(
    "keys",
    [
        {"model_type": "lfm3"},
        {"layer_types": ["conv", "mamba", "conv", "conv"]},
        {"rope_scaling": {"type": "longrope"}},
    ],
)
def test_variants_are_refused(keys: dict[str, Any]):
    """FA-5: what is not implemented is refused before a weight is read."""
    with pytest.raises(UnsupportedModelError):
        parse(DENSE | keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_theta": 5e5},
        {"theta": 5e5},
        {"theta": 5e5, "rope_theta": 1.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_theta": 1.0, "rope_parameters": {"rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_parameters": {"rope_theta": None}},
        {"rope_parameters": {"full_attention": {"rope_theta": 5e5}, "conv": None}},
    ],
)
def test_the_base_stands_in_many_places(keys: dict[str, Any]):
    """FA-5: newer configs keep `rope_theta` in `rope_parameters`, the first called it theta."""
    assert parse(DENSE | keys).rope == RopeSpec(16, 5e5)


@pytest.mark.parametrize(
    ("keys", "tied"),
    [
        ({"tie_word_embeddings": False}, False),
        ({"tie_embedding": False}, False),
        ({"tie_word_embeddings": False, "tie_embedding": True}, True),
    ],
)
def test_both_names_of_the_tie(keys: dict[str, Any], tied: bool):
    """FA-5: the first release said `tie_embedding`."""
    assert parse(DENSE | keys).tie_word_embeddings is tied


def test_nested_text_config():
    """FA-5: keys of a nested `text_config` win, its nulls do not."""
    nested = MOE | {"norm_eps": 1e-6, "head_dim": None}
    config = parse({"model_type": "lfm2", "hidden_size": 8, "text_config": nested})

    assert config == parse(MOE | {"norm_eps": 1e-6})


def test_a_block_is_not_all_there_is_of_a_prefix():
    """GR-1, SD-3: attention is paged; convolutions keep rows, which a sidecar holds."""
    rows = RecurrentState([StateTensor("conv", (3, 256))])
    routes = [Recurrent(0, 0), Recurrent(0, 1), Owned(0, 0), Recurrent(0, 2)]
    config = parse(DENSE | {"conv_L_cache": 4})
    sidecar = SidecarLayout(3, [SidecarTensor("conv", (3, 256), "bfloat16")])

    assert hooks.declare_cache_groups(config) == CacheLayout(
        [FullAttention(8, 16)], routes, states=[rows]
    )
    assert FAMILY.build_sidecar_policy(config, "bfloat16") == SidecarPolicy(
        "conv_state", sidecar
    )
    assert FAMILY.cold_restore_eligibility(config).eligible


def test_without_convolutions_there_is_no_sidecar():
    """SD-3: then blocks hold all that a prefix leaves behind."""
    config = parse(DENSE | {"full_attn_idxs": [0, 1, 2, 3]})

    assert FAMILY.build_sidecar_policy(config, "float32") is None
