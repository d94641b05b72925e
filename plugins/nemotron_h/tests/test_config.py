"""Nemotron-H's config.json: defaults, other names of keys, contradictions, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import neve_nemotron_h.plugin
from neve.catalogue import load_family
from neve.contract.cache_spec import (
    CacheLayout,
    FullAttention,
    Owned,
    Recurrent,
    RecurrentState,
    StateTensor,
    Uncached,
)
from neve.contract.errors import ConfigError, UnsupportedModelError
from neve.contract.hooks import RequiredHooks
from neve.contract.plan import ExecutionPlan
from neve.contract.sidecar import SidecarLayout, SidecarPolicy, SidecarTensor
from neve_nemotron_h.config import AttentionConfig, ExpertsConfig, MambaConfig, parse

# pyright checks names, arguments and results of the required hooks here
hooks: RequiredHooks = neve_nemotron_h.plugin
FAMILY = load_family("nemotron_h", hooks)

INF = float("inf")
PATTERN = "ME*-M"
TYPES = ("mamba", "moe", "attention", "mlp", "mamba")
BASE = {
    "model_type": "nemotron_h",
    "hidden_size": 256,
    "vocab_size": 100,
    "hybrid_override_pattern": PATTERN,
    "num_attention_heads": 16,
    "mamba_num_heads": 32,
    "intermediate_size": 512,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 96,
}


def test_absent_keys_have_the_makers_defaults():
    """FA-7: what a config.json leaves out is what the makers' config class says."""
    config = parse(BASE)

    assert config.layer_types == TYPES
    assert (config.norm_eps, config.max_position_embeddings) == (1e-5, 4096)
    assert (config.intermediate_size, config.mlp_bias) == (512, False)
    assert not config.tie_word_embeddings
    assert config.attention == AttentionConfig(
        num_heads=16, num_kv_heads=8, head_dim=128, bias=False
    )
    assert config.mamba == MambaConfig(
        num_heads=32,
        head_dim=64,
        num_groups=8,
        state_dim=128,
        kernel=4,
        chunk=128,
        bias=False,
        conv_bias=True,
        limit=(0.0, INF),
    )
    assert config.experts == ExpertsConfig(
        num_experts=8,
        num_chosen=2,
        hidden_dims=64,
        latent_dims=None,
        shared_hidden_dims=96,
        renormalise=True,
        scale=1.0,
        num_groups=1,
        num_chosen_groups=1,
    )


@pytest.mark.parametrize("key", sorted(BASE.keys() - {"model_type"}))
def test_keys_that_are_needed(key: str):
    """FA-7: a key that is missing or null is a ConfigError that names it."""
    for raw in (BASE | {key: None}, {k: v for k, v in BASE.items() if k != key}):
        with pytest.raises(ConfigError, match=key):
            parse(raw)


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "vocab_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "mamba_num_heads",
        "mamba_head_dim",
        "ssm_state_size",
        "n_groups",
        "conv_kernel",
        "chunk_size",
        "intermediate_size",
        "n_routed_experts",
        "moe_latent_size",
    ],
)
def test_sizes_are_positive(key: str):
    """FA-7: a size of zero is a ConfigError that names the key."""
    with pytest.raises(ConfigError, match=key):
        parse(BASE | {key: 0})


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        ("M*-", ["n_routed_experts", "moe_intermediate_size", "num_experts_per_tok"]),
        ("M*E", ["intermediate_size"]),
        ("M-E", ["num_attention_heads"]),
        ("*-E", ["mamba_num_heads"]),
    ],
)
def test_keys_of_layers_that_are_not_there_are_not_needed(pattern: str, keys: list[str]):
    """FA-7: a model without experts need not say how wide they are, and so on."""
    raw = {k: v for k, v in BASE.items() if k not in keys}

    config = parse(raw | {"hybrid_override_pattern": pattern})
    assert [config.attention, config.mamba, config.intermediate_size, config.experts].count(
        None
    ) == 1


@pytest.mark.parametrize(
    "keys",
    [
        {"hybrid_override_pattern": list(PATTERN)},
        {"hybrid_override_pattern": None, "layers_block_type": TYPES},
        {"hybrid_override_pattern": None, "layer_types": TYPES},
        {"layers_block_type": list(TYPES)},
        {
            "layers_block_type": [
                "linear_attention",
                "moe",
                "full_attention",
                "mlp",
                "linear_attention",
            ]
        },
        {"num_hidden_layers": 52},
        {"num_hidden_layers": None},
    ],
)
def test_ways_to_name_the_layers(keys: dict[str, Any]):
    """FA-7: letters and names, older and newer, say the same; their number is what counts."""
    config = parse(BASE | keys)

    assert config.layer_types == TYPES
    assert FAMILY.model_shape(config).num_layers == 5


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        (None, (0.0, INF)),
        ([0.0, INF], (0.0, INF)),
        ([0, 1], (0.0, 1.0)),
        ([0.001, 0.1], (0.001, 0.1)),
        ([0.0, {"__float__": "Infinity"}], (0.0, INF)),
        ([0.0, "Infinity"], (0.0, INF)),
        ([0.0, None], (0.0, INF)),
    ],
)
def test_time_step_limit(given: Any, limit: tuple[float, float]):
    """FA-7: the one bound of time steps; `time_step_min` and `time_step_max` are none."""
    keys = {"time_step_limit": given, "time_step_min": 0.01, "time_step_max": 0.02}
    mamba = parse(BASE | keys).mamba

    assert mamba is not None
    assert mamba.limit == limit


@pytest.mark.parametrize(
    "given",
    [0.1, [], [0.1], [0, 1, 2], [1, 0], [-1, 1], [0, float("nan")], ["0", 1], "01", [True, 2]],
)
def test_time_step_limit_is_a_pair(given: Any):
    """FA-7: anything else than two ascending numbers is refused."""
    with pytest.raises(ConfigError, match="time_step_limit"):
        parse(BASE | {"time_step_limit": given})


def test_older_names_of_keys():
    """FA-7: the makers' first names are still read, and win."""
    older = {
        "mamba_n_groups": 4,
        "mamba_d_conv": 3,
        "mamba_dt_limit": [0.0, 1.0],
        "mamba_conv_bias": False,
        "mamba_chunk_size": 64,
    }
    newer = {
        "n_groups": 4,
        "conv_kernel": 3,
        "time_step_limit": [0.0, 1.0],
        "use_conv_bias": False,
        "chunk_size": 64,
    }

    assert parse(BASE | older | {"n_groups": 8}) == parse(BASE | newer)


@pytest.mark.parametrize(
    ("keys", "head_dim"),
    [
        ({"head_dim": 64}, 64),
        ({"attention_head_dim": 64}, 64),
        ({"head_dim": 64, "attention_head_dim": 32}, 64),
        ({"head_dim": None}, 128),
    ],
)
def test_width_of_a_head(keys: dict[str, Any], head_dim: int):
    """FA-7: not what the hidden size divided by the heads would be."""
    attention = parse(BASE | keys).attention

    assert attention is not None
    assert attention.head_dim == head_dim


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"hybrid_override_pattern": 13}, "hybrid_override_pattern"),
        ({"hybrid_override_pattern": ""}, "hybrid_override_pattern"),
        ({"layers_block_type": TYPES[:3]}, "layers_block_type"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"n_groups": 5}, "n_groups"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"n_group": 2, "topk_group": 3}, "topk_group"),
        ({"n_group": 3, "topk_group": 2}, "n_group"),
        ({"n_group": 8, "topk_group": 4}, "n_group"),
        ({"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3}, "num_experts_per_tok"),
        ({"text_config": 13}, "text_config"),
    ],
)
def test_what_contradicts_itself_is_refused(keys: dict[str, Any], named: str):
    """FA-7: the error names the key, before a weight is read."""
    with pytest.raises(ConfigError, match=named):
        parse(BASE | keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"model_type": "nemotron"},
        {"hybrid_override_pattern": "MEX"},
        {"hybrid_override_pattern": [1]},
        {"layers_block_type": ["mamba", "conv"]},
        {"mamba_hidden_act": "gelu"},
        {"mlp_hidden_act": "silu"},
        {"sliding_window": 512},
        {"residual_in_fp32": True},
        {"n_shared_experts": 2},
    ],
)
def test_variants_are_refused(keys: dict[str, Any]):
    """FA-7: what is not implemented is refused before a weight is read."""
    with pytest.raises(UnsupportedModelError):
        parse(BASE | keys)


def test_without_a_shared_expert():
    """FA-7: a model with none need not say how wide it is."""
    keys = {"n_shared_experts": 0, "moe_shared_expert_intermediate_size": None}
    experts = parse(BASE | keys).experts

    assert experts is not None
    assert experts.shared_hidden_dims is None


def test_rotations_are_not_looked_at():
    """FA-7: attention knows no positions, even where a config describes some."""
    assert parse(BASE | {"rope_theta": 1e4, "partial_rotary_factor": 0.5}) == parse(BASE)


def test_nested_text_config():
    """FA-7: keys of a nested `text_config` win, its nulls do not."""
    nested = BASE | {"layer_norm_epsilon": 1e-6, "head_dim": None, "mamba_n_groups": 4}
    config = parse({"model_type": "other", "n_groups": 2, "text_config": nested})

    assert config == parse(BASE | {"layer_norm_epsilon": 1e-6, "n_groups": 4})


def test_a_block_is_not_all_there_is_of_a_prefix():
    """GR-1, SD-10: attention is paged; Mamba-2 keeps float32 states, which a sidecar holds."""
    config = parse(BASE | {"mamba_head_dim": 16, "ssm_state_size": 32})
    state = RecurrentState(
        [
            StateTensor("conv", (3, 32 * 16 + 2 * 8 * 32), "float32"),
            StateTensor("ssm", (32, 16, 32), "float32"),
        ]
    )
    routes = [Recurrent(0, 0), Uncached(), Owned(0, 0), Uncached(), Recurrent(0, 1)]
    tensors = [SidecarTensor(t.name, t.shape, "float32") for t in state.tensors]

    assert hooks.declare_cache_groups(config) == CacheLayout(
        [FullAttention(8, 128)], routes, states=[state]
    )
    assert FAMILY.build_sidecar_policy(config, "bfloat16") == SidecarPolicy(
        "ssm_state", SidecarLayout(2, tensors)
    )
    assert FAMILY.cold_restore_eligibility(config).eligible


@pytest.mark.parametrize(("pattern", "chunk"), [(PATTERN, 64), ("*-", None)])
def test_prefill_is_cut_between_chunks(pattern: str, chunk: int | None):
    """FA-7: quantised rows run alone, and slices end where a chunk of the model does."""
    config = parse(BASE | {"hybrid_override_pattern": pattern, "chunk_size": 64})

    assert FAMILY.execution_plan(config) == ExecutionPlan(
        row_exact="quantized", prefill_chunk=chunk
    )
