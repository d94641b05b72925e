"""Muse-Glimmer's config.json: defaults, the two tables of layers, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import neve_muse_glimmer.plugin
from neve.catalogue import load_family
from neve.contract.cache_spec import CacheLayout, FullAttention, Owned, SlidingWindow
from neve.contract.errors import ConfigError, UnsupportedModelError
from neve.contract.forward import RopeSpec
from neve.contract.hooks import RequiredHooks
from neve.contract.plan import ExecutionPlan
from neve.contract.sidecar import SidecarLayout, SidecarPolicy, SidecarTensor
from neve_muse_glimmer.config import MuseGlimmerConfig, parse

# pyright checks names, arguments and results of the required hooks here
hooks: RequiredHooks = neve_muse_glimmer.plugin
FAMILY = load_family("muse_glimmer", hooks)

ROPE = RopeSpec(32, 5e5)
BASE = {
    "model_type": "muse_glimmer_text",
    "hidden_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "head_dim": 32,
    "vocab_size": 100,
    "sliding_window": 24,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
}
FULL, SLIDING = "full_attention", "sliding_attention"
TYPES = [SLIDING, FULL, SLIDING, SLIDING, SLIDING, FULL]
THETAS = [5e5, 0, 5e5, 5e5, 5e5, 0]


def nested(text: dict[str, Any], **outer: Any) -> dict[str, Any]:
    return {"model_type": "muse_glimmer", "text_config": text, **outer}


def test_absent_keys_have_the_makers_defaults():
    """FA-8: a config.json that says next to nothing is that of the 30B model."""
    rope = RopeSpec(128, 1e4)

    assert parse({"model_type": "muse_glimmer_text", "hidden_size": 6656}) == MuseGlimmerConfig(
        hidden_size=6656,
        intermediate_size=19968,
        ropes=(rope, rope, rope, None) * 13,
        sliding_window=2048,
        num_attention_heads=32,
        num_key_value_heads=2,
        head_dim=128,
        vocab_size=202_048,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        post_norm_eps=1e-8,
        qk_scale_factor=3.87,
        output_multiplier=0.19611613513818404,
        final_logit_softcapping=20.0,
        attention_bias=False,
        tie_word_embeddings=False,
    )


def test_heads_may_be_wider_or_narrower_than_the_stream():
    """FA-8: 32 heads of 128 are 4096 wide in a residual stream of 6656."""
    config = parse({"hidden_size": 6656})

    assert config.num_attention_heads * config.head_dim == 4096


def test_text_part_may_be_nested():
    """FA-8: the keys stand in `text_config`, beside a vision config, or at the top."""
    vision = {"model_type": "muse_glimmer_vision", "hidden_size": 1536}

    assert parse(nested(BASE, vision_config=vision, image_token_id=7)) == parse(BASE)
    assert parse(BASE | {"model_type": "muse_glimmer"}) == parse(BASE)


def test_no_text_part_at_all():
    """FA-8: a config.json without any key of a text model is not the 30B model's."""
    with pytest.raises(ConfigError, match="text_config"):
        parse({"model_type": "muse_glimmer", "vision_config": {}})


# -- layers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_layers", "full"), [(52, range(3, 52, 4)), (8, (3, 7)), (6, (1, 5)), (3, (2,))]
)
def test_layers_by_default(num_layers: int, full: Any):
    """FA-8: every fourth, counted from the last, is full and rotates nothing."""
    ropes = parse(BASE | {"num_hidden_layers": num_layers}).ropes

    assert [i for i, rope in enumerate(ropes) if rope is None] == list(full)
    assert len(ropes) == num_layers


@pytest.mark.parametrize(
    "keys",
    [
        {"layer_types": TYPES},
        {"layer_rope_theta": THETAS},
        {"layer_types": TYPES, "layer_rope_theta": THETAS},
        {"layer_rope_theta": THETAS, "rope_parameters": None},
        {"layer_rope_theta": THETAS, "rope_parameters": {"rope_theta": None}},
        {"rope_parameters": None, "rope_theta": 5e5},
        {"rope_theta": 1.0},
        {"rope_parameters": None, "rope_scaling": {"type": "default", "rope_theta": 5e5}},
    ],
)
def test_either_table_and_either_base(keys: dict[str, Any]):
    """FA-8: a table or base that is left out follows from the others and the defaults."""
    config = parse(BASE | keys)

    assert config.ropes == tuple(ROPE if theta else None for theta in THETAS)


def test_tables_may_depart_from_the_pattern():
    """FA-8: full layers may lie anywhere, and all may be of one kind."""
    for full in ({0}, set[int](), set(range(6))):
        kinds = [FULL if i in full else SLIDING for i in range(6)]
        thetas = [0 if i in full else 5e5 for i in range(6)]
        config = parse(BASE | {"layer_types": kinds, "layer_rope_theta": thetas})

        assert config.ropes == tuple(None if i in full else ROPE for i in range(6))


def test_each_layer_may_have_a_base_of_its_own():
    """FA-8: where nothing names a base for all, the table's bases are the layers'."""
    thetas = [1e4, 0, 2e4, 3e4, 4e4, 0]
    config = parse(BASE | {"rope_parameters": None, "layer_rope_theta": thetas})

    assert [rope and rope.theta for rope in config.ropes] == [t or None for t in thetas]


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"layer_rope_theta": [0, *THETAS[1:]]}, "layer 0 is of sliding_attention.* positive"),
        ({"layer_rope_theta": [*THETAS[:5], 5e5]}, "layer 5 is of full_attention.* must be 0"),
        ({"layer_types": [FULL, *TYPES[1:]]}, "layer 0 is of full_attention.* must be 0"),
        ({"layer_rope_theta": [1e4, *THETAS[1:]]}, "layer 0 must be 0 or .* 500000"),
        ({"layer_rope_theta": [-1, *THETAS[1:]], "rope_parameters": None}, "0 or positive"),
        ({"layer_rope_theta": THETAS[:5]}, "num_hidden_layers = 6"),
    ],
)
def test_layers_rotate_exactly_if_they_slide(keys: dict[str, Any], reason: str):
    """FA-8: full attention has base 0 and the others the model's, or the config is refused."""
    with pytest.raises(ConfigError, match=rf"text_config\.layer_rope_theta: .*{reason}"):
        parse(nested(BASE | keys))


# -- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"sliding_window": 0}, "sliding_window"),
        ({"sliding_window": -1}, "sliding_window"),
        ({"sliding_window": 2**32}, "sliding_window"),
        ({"sliding_window": 24.0}, "sliding_window"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"head_dim": 0}, "head_dim"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": None, "layer_types": TYPES}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"layer_types": TYPES[:5]}, "layer_types"),
        ({"final_logit_softcapping": 0.0}, "final_logit_softcapping"),
        ({"rope_parameters": {"rope_theta": 0}}, r"rope_parameters\.rope_theta"),
        ({"rope_parameters": {"rope_theta": "big"}}, r"rope_parameters\.rope_theta"),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_wrong_keys_are_named(keys: dict[str, Any], named: str, is_nested: bool):
    """FA-8: with the path that they have in config.json."""
    text = BASE | keys
    with pytest.raises(ConfigError, match=f"text_config.{named}:" if is_nested else named):
        parse(nested(text) if is_nested else text)


def test_largest_window():
    """FA-8: a window is at most what positions can be, 31 bits."""
    config = parse(BASE | {"sliding_window": 2**31 - 1})

    assert config.sliding_window == 2**31 - 1
    with pytest.raises(ConfigError, match="sliding_window"):
        parse(BASE | {"sliding_window": 2**31})


@pytest.mark.parametrize(
    "keys",
    [
        {"hidden_activation": "gelu"},
        {"model_type": "llama"},
        {"layer_types": ["chunked_attention"] * 6},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "longrope"}},
    ],
)
def test_variants_are_refused(keys: dict[str, Any]):
    """FA-8: what is not implemented is refused before a weight is read."""
    with pytest.raises(UnsupportedModelError):
        parse(nested(BASE | keys))


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [(None, None, False), (True, None, True), (None, True, True), (False, False, False)],
)
def test_both_places_of_the_tie(outer: bool | None, inner: bool | None, tied: bool):
    """FA-8: the flag may stand inside or outside."""
    text = BASE | {"tie_word_embeddings": inner}
    config = parse(nested(text, tie_word_embeddings=outer))

    assert config.tie_word_embeddings is tied


def test_a_tie_that_contradicts_itself():
    """FA-8: two flags that differ are refused."""
    text = BASE | {"tie_word_embeddings": False}
    with pytest.raises(ConfigError, match=r"tie_word_embeddings: .*must be equal"):
        parse(nested(text, tie_word_embeddings=True))


# -- what the hooks make of it -------------------------------------------------------------


def test_windows_and_full_attention_are_two_groups():
    """GR-1, SD-5: layers of a kind share a group; a sidecar holds the windows, in a grid."""
    config = parse(BASE | {"layer_types": TYPES, "layer_rope_theta": THETAS})
    routes = [Owned(0, 0), Owned(1, 0), Owned(0, 1), Owned(0, 2), Owned(0, 3), Owned(1, 1)]
    rows = [SidecarTensor(name, (1, 2, 24, 32), "bfloat16") for name in ("keys", "values")]

    assert hooks.declare_cache_groups(config) == CacheLayout(
        [SlidingWindow(window=24, kv_heads=2, head_dim=32), FullAttention(2, 32)], routes
    )
    assert FAMILY.build_sidecar_policy(config, "bfloat16") == SidecarPolicy(
        "sliding_window", SidecarLayout(4, rows), 2, (1, 4, 16, 64, 256)
    )
    assert FAMILY.cold_restore_eligibility(config).eligible


def test_without_windows_there_is_no_sidecar():
    """SD-5: then blocks hold all that a prefix leaves behind."""
    config = parse(BASE | {"layer_types": [FULL] * 6, "layer_rope_theta": [0] * 6})

    assert FAMILY.build_sidecar_policy(config, "float32") is None


def test_a_preempted_turn_is_not_spilled():
    """SC-4: it is computed again."""
    assert FAMILY.execution_plan(parse(BASE)) == ExecutionPlan(spill=False)


def test_the_end_of_a_message_is_not_that_of_a_turn():
    """FA-8: `<|eom|>` stands between a thought and an answer."""
    protocol = FAMILY.output_protocol(parse(BASE))

    assert protocol.end_of_turn == ("<|eot|>",)
    assert protocol.reasoning is not None
    assert protocol.reasoning[1].startswith("<|eom|>")
