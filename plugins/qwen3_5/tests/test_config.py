"""Qwen3.5's config.json: where the text model's keys stand, defaults, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import neve_qwen3_5.plugin
from neve.catalogue import load_family
from neve.contract.cache_spec import FullAttention, Owned, Recurrent, StateTensor
from neve.contract.errors import ConfigError, UnsupportedModelError
from neve.contract.forward import RopeSpec
from neve.contract.hooks import RequiredHooks
from neve.contract.sidecar import SidecarLayout, SidecarPolicy, SidecarTensor
from neve_qwen3_5.config import DeltaConfig, ExpertsConfig, parse

# pyright checks names, arguments and results of the required hooks here
hooks: RequiredHooks = neve_qwen3_5.plugin
FAMILY = load_family("qwen3_5", hooks)

DENSE: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 12,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "rope_parameters": {"rope_theta": 1e7, "rope_type": "default"},
}

EXPERTS: dict[str, Any] = {
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}

SPARSE = {k: v for k, v in DENSE.items() if k != "intermediate_size"} | EXPERTS
SPARSE["model_type"] = "qwen3_5_moe_text"


def test_absent_keys_have_the_makers_defaults():
    """FA-2: attention is 256 wide, a quarter of it rotated, and every fourth layer is full."""
    config = parse(DENSE)

    assert config.full_attention == (False, False, False, True, False, False)
    assert config.delta == DeltaConfig(
        key_heads=4, value_heads=12, key_dim=16, value_dim=8, kernel=4
    )
    assert (config.head_dim, config.rope) == (256, RopeSpec(64, 1e7))
    assert (config.rms_norm_eps, config.max_position_embeddings) == (1e-6, 32768)
    assert not config.tie_word_embeddings
    assert not config.attention_bias


def test_text_model_may_be_nested_or_alone():
    """FA-2: `text_config` of a checkpoint with a vision tower is a text-only config.json."""
    nested = {"model_type": "qwen3_5", "text_config": DENSE, "vision_config": {"depth": 1}}

    assert parse(nested) == parse(DENSE)
    assert parse(DENSE | {"model_type": "qwen3_5"}) == parse(DENSE)


@pytest.mark.parametrize("outer", ["qwen3_5_moe", "qwen3_5"])
@pytest.mark.parametrize("inner", ["qwen3_5_moe_text", None])
def test_either_model_type_says_that_there_are_experts(outer: str, inner: str | None):
    """FA-3: the outer type or the text model's own."""
    raw = {"model_type": outer, "text_config": SPARSE | {"model_type": inner}}
    if outer == "qwen3_5" and inner is None:
        with pytest.raises(ConfigError, match=r"text_config\.intermediate_size"):
            parse(raw)
        return

    assert parse(raw).mlp == ExpertsConfig(
        num_experts=16, num_chosen=4, hidden_dims=32, shared_hidden_dims=64
    )


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [(True, None, True), (False, True, True), (True, False, False), (None, None, False)],
)
def test_text_models_own_word_on_tying_comes_first(
    outer: bool | None, inner: bool | None, tied: bool
):
    """FA-2: `tie_word_embeddings` stands outside, inside or in both."""
    text = DENSE | {"tie_word_embeddings": inner}
    raw = {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": outer}

    assert parse(raw).tie_word_embeddings is tied


def test_layers_are_listed_or_counted():
    """FA-2: `layer_types` wins over `full_attention_interval`."""
    types = ["full_attention", *["linear_attention"] * 5]

    assert parse(DENSE | {"full_attention_interval": 2}).full_attention == (False, True) * 3
    assert parse(DENSE | {"layer_types": types}).full_attention == (True, *[False] * 5)


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        ({"rope_parameters": None, "rope_theta": 5e5}, RopeSpec(64, 5e5)),
        ({"rope_theta": 5e5}, RopeSpec(64, 1e7)),
        ({"partial_rotary_factor": 0.5}, RopeSpec(128, 1e7)),
        (
            {
                "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 1.0},
                "partial_rotary_factor": 0.5,
            },
            RopeSpec(256, 1e7),
        ),
        (
            {
                "rope_parameters": {
                    "rope_theta": 1e7,
                    "mrope_section": [11, 11, 10],
                    "mrope_interleaved": True,
                }
            },
            RopeSpec(64, 1e7),
        ),
        (
            {
                "rope_parameters": None,
                "rope_theta": 1e7,
                "rope_scaling": {"type": "mrope", "mrope_section": [11, 11, 10]},
            },
            RopeSpec(64, 1e7),
        ),
    ],
    ids=["older", "both", "part", "inner part", "sections", "older sections"],
)
def test_rotary_keys_stand_in_several_places(keys: dict[str, Any], rope: RopeSpec):
    """FA-2: `rope_parameters` wins; sections are of no account, the axes of text are equal."""
    assert parse(DENSE | keys).rope == rope


def test_yarn_stretches_the_rotated_part():
    """FA-2: a longer context is asked for by a rule beside the sections."""
    rule = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
    rope = parse(DENSE | {"rope_parameters": rule | {"rope_theta": 1e7}}).rope

    assert rope.dims == 64
    assert rope.inv_freq is not None


def test_layout_has_blocks_and_states(checkpoint: Path):
    """GR-1: full attention has blocks; the others inputs of a convolution, and matrices."""
    raw = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    layout = hooks.declare_cache_groups(parse(raw))

    assert layout.groups == (FullAttention(2, 64),)
    assert [isinstance(route, Owned) for route in layout.routes] == 2 * [*[False] * 3, True]
    assert [route for route in layout.routes if isinstance(route, Recurrent)] == [
        Recurrent(0, i) for i in range(6)
    ]
    assert layout.states[0].tensors == (
        StateTensor("conv", (3, 256)),
        StateTensor("recurrent", (4, 32, 32), "float32"),
    )


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_key_value_heads": None}, "num_key_value_heads"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        ({"num_attention_heads": 9}, "num_key_value_heads"),
        ({"linear_num_value_heads": 6}, "linear_num_key_heads"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"rope_parameters": None}, r"rope_parameters\.rope_theta"),
        ({"rope_parameters": {"rope_theta": "big"}}, r"rope_parameters\.rope_theta"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.001}, "partial_rotary_factor"),
        ({"partial_rotary_factor": -0.25}, "partial_rotary_factor"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_wrong_keys_are_named(keys: dict[str, Any], named: str, nested: bool):
    """FA-2: with the path that they have in config.json."""
    text = DENSE | keys
    with pytest.raises(ConfigError, match=f"text_config.{named}:" if nested else named):
        parse({"model_type": "qwen3_5", "text_config": text} if nested else text)


@pytest.mark.parametrize("key", EXPERTS)
def test_experts_need_their_keys(key: str):
    """FA-3: none of them has a default."""
    with pytest.raises(ConfigError, match=key):
        parse(SPARSE | {key: None})


def test_no_more_experts_are_chosen_than_there_are():
    """FA-3: a ConfigError says so."""
    with pytest.raises(ConfigError, match="num_experts_per_tok"):
        parse(SPARSE | {"num_experts_per_tok": 17})


@pytest.mark.parametrize(
    "keys",
    [
        {"hidden_act": "gelu"},
        {"attn_output_gate": False},
        {"layer_types": ["sliding_attention"] * 6},
        {"rope_parameters": {"rope_theta": 1e7, "rope_type": "longrope"}},
    ],
)
def test_variants_are_refused(keys: dict[str, Any]):
    """FA-2: what is not implemented is refused before a weight is read."""
    with pytest.raises(UnsupportedModelError):
        parse(DENSE | keys)


def test_a_block_is_not_all_there_is_of_a_prefix():
    """GR-1, SD-3: a sidecar holds what delta nets keep, each tensor in its own dtype."""
    config = parse(DENSE)
    tensors = [
        SidecarTensor("conv", (3, 2 * 4 * 16 + 12 * 8), "bfloat16"),
        SidecarTensor("recurrent", (12, 8, 16), "float32"),
    ]

    assert FAMILY.build_sidecar_policy(config, "bfloat16") == SidecarPolicy(
        "gdn_state", SidecarLayout(5, tensors)
    )
    assert FAMILY.cold_restore_eligibility(config).eligible
