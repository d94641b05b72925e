"""Gemma 4's config.json: defaults, both layouts, contradictions, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import neve_gemma4.plugin
from neve.catalogue import load_family
from neve.contract.cache_spec import Alias, FullAttention, Owned, SlidingWindow
from neve.contract.errors import ConfigError, UnsupportedModelError
from neve.contract.forward import RopeSpec
from neve.contract.hooks import RequiredHooks
from neve.contract.sidecar import SidecarTensor
from neve_gemma4.config import ExpertsConfig, Gemma4Config, parse
from neve_gemma4.rope import proportional

# pyright checks names, arguments and results of the required hooks here
hooks: RequiredHooks = neve_gemma4.plugin
FAMILY = load_family("gemma4", hooks)

TEXT: dict[str, Any] = {
    "model_type": "gemma4_text",
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_hidden_layers": 35,
}
SLIDING, FULL = "sliding_attention", "full_attention"


def parsed(**changes: Any) -> Gemma4Config:
    return parse({"model_type": "gemma4", "text_config": TEXT | changes})


def test_absent_keys_have_the_makers_defaults():
    """FA-4: what a config.json leaves out is what the makers' config class says."""
    config = parsed()
    sliding, full = config.attention[SLIDING], config.attention[FULL]

    assert (config.num_attention_heads, config.vocab_size) == (8, 262_144)
    assert (config.max_position_embeddings, config.rms_norm_eps) == (131_072, 1e-6)
    assert (sliding.num_kv_heads, sliding.head_dim, sliding.window) == (4, 256, 512)
    assert (full.num_kv_heads, full.head_dim, full.window) == (4, 512, None)
    assert sliding.rope == RopeSpec(256, 1e4)
    assert full.rope == proportional(512, 1e6, 0.25, 1.0)
    assert (config.num_shared_layers, config.double_wide) == (0, False)
    assert (config.per_layer_dims, config.per_layer_vocab_size) == (256, 262_144)
    assert (config.experts, config.softcap) == (None, None)
    assert config.tie_word_embeddings
    assert not config.attention_bias
    assert not full.keys_are_values


def test_nulls_count_as_missing():
    """FA-4: a null is what a key that is left out is."""
    keys = ("num_attention_heads", "head_dim", "global_head_dim", "rope_parameters")
    nulls = dict.fromkeys((*keys, "sliding_window", "layer_types", "per_layer_config"))

    assert parsed(**nulls) == parsed()


def test_absent_keys_of_the_experts():
    """FA-4: experts that are switched on and not described are those of the 26B model."""
    experts = ExpertsConfig(num_experts=128, num_chosen=8, hidden_dims=704)

    assert parsed(enable_moe_block=True).experts == experts
    assert parsed(enable_moe_block=False, num_experts=4).experts is None


def test_fallback_pattern():
    """FA-4: without a list every fifth layer is full: 7 of 35."""
    types = parsed().layer_types

    assert types.count(FULL) == 7
    assert types[:6] == (SLIDING,) * 4 + (FULL, SLIDING)
    assert all(types[i] == FULL for i in range(4, 35, 5))


def test_the_last_layer_of_a_fallback_is_full():
    """FA-4: as the makers have it, also where the pattern ends in between."""
    types = parsed(num_hidden_layers=8).layer_types

    assert types == (SLIDING,) * 4 + (FULL, SLIDING, SLIDING, FULL)


def test_text_only_and_nested_configs_are_one():
    """FA-4: a text-only checkpoint has the text model's keys at the top."""
    outer = {"model_type": "gemma4", "text_config": TEXT, "vision_config": {"depth": 3}}

    assert parse(TEXT) == parse(outer)


@pytest.mark.parametrize(
    ("inner", "outer", "tied"),
    [(None, None, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_the_tie_stands_inside_or_outside(inner: bool | None, outer: bool | None, tied: bool):
    """FA-4: what the text model says of its head wins over what stands around it."""
    text = TEXT | {"tie_word_embeddings": inner}

    assert (
        parse({"text_config": text, "tie_word_embeddings": outer}).tie_word_embeddings is tied
    )


# -- heads and rotary embeddings ------------------------------------------------------------


@pytest.mark.parametrize(("keys_are_values", "heads"), [(True, 1), (False, 4)])
def test_full_layers_have_heads_of_their_own_where_keys_are_values(
    keys_are_values: bool, heads: int
):
    """FA-4: the number of global heads counts with `attention_k_eq_v`, their width always."""
    config = parsed(
        attention_k_eq_v=keys_are_values, num_global_key_value_heads=1, global_head_dim=64
    )
    full, sliding = config.attention[FULL], config.attention[SLIDING]

    assert (full.num_kv_heads, full.head_dim) == (heads, 64)
    assert (sliding.num_kv_heads, sliding.head_dim) == (4, 256)
    assert (full.keys_are_values, sliding.keys_are_values) == (keys_are_values, False)


def test_heads_may_be_listed_layer_by_layer():
    """FA-4: newer configs say in `per_layer_config` what others say of global heads."""
    listed = {str(i): {"head_dim": 64, "num_key_value_heads": 2} for i in range(4, 35, 5)}
    changes = {"attention_k_eq_v": True, "num_key_value_heads": 4}
    config = parsed(per_layer_config=listed, **changes)

    assert config == parsed(global_head_dim=64, num_global_key_value_heads=2, **changes)


def test_heads_that_differ_within_a_type_are_refused():
    """FA-4: layers of one type share a cache group, so their heads are equal."""
    with pytest.raises(UnsupportedModelError, match=r"per_layer_config\.9"):
        parsed(per_layer_config={"4": {"head_dim": 64}, "9": {"head_dim": 128}})


def test_a_proportional_rotation_keeps_the_wavelengths_of_the_whole_head():
    """FA-4: a quarter of the pairs turns; a narrower head would have other wavelengths."""
    spec = proportional(16, 1e4, 0.25, 2.0)

    assert spec.dims == 16
    assert spec.inv_freq == (0.5, 1e4 ** (-2 / 16) / 2, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("full", "spec"),
    [
        (None, proportional(512, 1e6, 0.25, 1.0)),
        ({"rope_type": "proportional"}, proportional(512, 1e6, 1.0, 1.0)),
        ({"type": "proportional", "rope_theta": 5.0}, proportional(512, 5.0, 1.0, 1.0)),
        ({"rope_theta": 5.0}, RopeSpec(512, 5.0)),
    ],
)
def test_rotary_rules(full: Any, spec: RopeSpec):
    """FA-4: a rule that is missing is the makers', a key that is missing has its default."""
    config = parsed(rope_parameters={SLIDING: None, FULL: full})

    assert config.attention[FULL].rope == spec
    assert config.attention[SLIDING].rope == RopeSpec(256, 1e4)


# -- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"final_logit_softcapping": 0.0}, "final_logit_softcapping"),
        ({"layer_types": [FULL]}, "layer_types"),
        ({"layer_types": [FULL] * 34 + [SLIDING]}, "layer_types"),
        ({"num_kv_shared_layers": 35}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": 31}, "num_kv_shared_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        (
            {"attention_k_eq_v": True, "num_global_key_value_heads": 3},
            "num_global_key_value_heads",
        ),
        ({"head_dim": 63}, "head_dim"),
        ({"global_head_dim": 63}, "global_head_dim"),
        ({"vocab_size_per_layer_input": 100}, "vocab_size"),
        ({"enable_moe_block": True, "top_k_experts": 129}, "top_k_experts"),
        ({"enable_moe_block": True, "num_experts": 0}, "num_experts"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters.rope_theta"),
        ({"rope_parameters": {FULL: 13}}, f"rope_parameters.{FULL}"),
        (
            {"rope_parameters": {FULL: {"partial_rotary_factor": 0.5}}},
            f"rope_parameters.{FULL}.rope_type",
        ),
        (
            {"rope_parameters": {SLIDING: {"partial_rotary_factor": 1.5}}},
            f"rope_parameters.{SLIDING}.partial_rotary_factor",
        ),
        ({"per_layer_config": {"4": {"head_dim": "wide"}}}, "per_layer_config.4.head_dim"),
    ],
)
def test_what_contradicts_itself_is_refused(changes: dict[str, Any], named: str):
    """FA-4: the error names the key with its path, before a weight is read."""
    with pytest.raises(ConfigError) as caught:
        parsed(**changes)

    assert caught.value.key == f"text_config.{named}"


def test_a_small_table_of_layers_that_have_no_embeddings_does_no_harm():
    """FA-4: its size counts where there are embeddings for each layer."""
    config = parsed(vocab_size_per_layer_input=1, hidden_size_per_layer_input=0)

    assert config.per_layer_dims == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_activation": "silu"},
        {"use_bidirectional_attention": "all"},
        {"layer_types": [FULL] * 34 + ["chunked_attention"]},
        {"rope_parameters": {FULL: {"rope_type": "longrope"}}},
    ],
)
def test_variants_are_refused(changes: dict[str, Any]):
    """FA-4: what is not implemented is refused before a weight is read."""
    with pytest.raises(UnsupportedModelError):
        parsed(**changes)


def test_images_that_see_themselves_leave_text_causal():
    """FA-4: `use_bidirectional_attention: vision` is about images, which are not read."""
    assert parsed(use_bidirectional_attention="vision") == parsed()


# -- the cache ------------------------------------------------------------------------------


def test_shared_layers_read_the_last_layer_of_their_type():
    """GR-1: an alias points at the last layer of its own type that has keys of its own."""
    config = parsed(num_kv_shared_layers=20, num_key_value_heads=1, use_double_wide_mlp=True)
    layout = hooks.declare_cache_groups(config)

    assert layout.groups == (
        SlidingWindow(window=512, kv_heads=1, head_dim=256),
        FullAttention(1, 512),
    )
    assert layout.routes[:6] == (*(Owned(0, i) for i in range(4)), Owned(1, 0), Owned(0, 4))
    assert layout.routes[13:20] == (Owned(0, 11), Owned(1, 2), *(Alias(13),) * 4, Alias(14))
    assert [config.mlp_dims(i) for i in (14, 15)] == [6144, 12288]


def test_a_window_is_what_blocks_do_not_hold():
    """SD-2, SD-3, SD-5: keys and values of windows, at anchors that all prompts share."""
    config = parsed(num_kv_shared_layers=20, num_key_value_heads=1, sliding_window=1024)
    policy = FAMILY.build_sidecar_policy(config, "bfloat16")
    assert policy is not None
    short = policy.expected_at(64)

    assert (policy.group, policy.anchors) == ("sliding_window", (4, 16, 64, 256))
    assert policy.layout.num_layers == 12
    assert short.tensors == tuple(
        SidecarTensor(name, (1, 1, 64, 256), "bfloat16") for name in ("keys", "values")
    )
    assert FAMILY.cold_restore_eligibility(config).eligible


def test_without_windows_there_is_no_sidecar():
    """SD-3: then blocks hold all that a prefix leaves behind."""
    config = parsed(layer_types=[FULL] * 35)

    assert FAMILY.build_sidecar_policy(config, "float32") is None
