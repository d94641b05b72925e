"""What config.json says about quantised layers."""

from __future__ import annotations

import pytest

from neve.checkpoint.quantization import (
    LayerQuantization,
    Quantization,
    parse_quantization,
)
from neve.errors import ConfigError, UnsupportedModelError

AFFINE = LayerQuantization(64, 4, "affine")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"group_size": 64, "bits": 4}, AFFINE),
        ({}, AFFINE),
        ({"group_size": 128, "bits": 3, "mode": "affine"}, LayerQuantization(128, 3, "affine")),
        ({"mode": "mxfp4"}, LayerQuantization(32, 4, "mxfp4")),
        ({"mode": "mxfp8", "group_size": 32, "bits": 8}, LayerQuantization(32, 8, "mxfp8")),
        ({"mode": "nvfp4", "group_size": 16}, LayerQuantization(16, 4, "nvfp4")),
    ],
)
def test_the_default(raw, expected):
    """Group size, bits and mode are read; each mode has its own defaults."""
    assert parse_quantization({"quantization": raw}) == Quantization(expected, {})


def test_no_quantization():
    """A config.json without the key, or with null, describes a checkpoint as it is."""
    assert parse_quantization({}) is None
    assert parse_quantization({"quantization": None, "quantization_config": None}) is None


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": {"bits": 4}},
        {"quantization": {"bits": 4}, "quantization_config": {"quant_method": "other"}},
        {"text_config": {"quantization": {"bits": 4}}},
        {"text_config": {"quantization_config": {"bits": 4}}},
    ],
)
def test_where_it_may_stand(config):
    """Both keys are read, MLX's own first, also inside text_config."""
    assert parse_quantization(config) == Quantization(AFFINE, {})


def test_single_layers():
    """Layers have their own settings, none at all, or those of the rest."""
    raw = {
        "group_size": 32,
        "bits": 4,
        "mode": "mxfp4",
        "a.b": {"group_size": 32, "bits": 8},
        "c": False,
        "d": True,
        "e": {"mode": "nvfp4"},
    }

    found = parse_quantization({"quantization": raw})

    mxfp4 = LayerQuantization(32, 4, "mxfp4")
    assert found is not None
    assert found.default == mxfp4
    assert found.layers == {
        "a.b": LayerQuantization(32, 8, "affine"),
        "c": None,
        "d": mxfp4,
        "e": LayerQuantization(16, 4, "nvfp4"),
    }


def test_of():
    """A layer's own entry decides; without one, whether the checkpoint has its scales."""
    own = LayerQuantization(32, 8, "affine")
    quantization = Quantization(AFFINE, {"own": own, "none": None})

    assert quantization.of("own", has_scales=False) == own
    assert quantization.of("none", has_scales=True) is None
    assert quantization.of("other", has_scales=True) == AFFINE
    assert quantization.of("other", has_scales=False) is None


def test_renamed():
    """Single layers follow their tensors' names, and go with them."""
    quantization = Quantization(AFFINE, {"lm.a": None, "vision.b": None})

    def rename(name):
        return name.removeprefix("lm.") if name.startswith("lm.") else None

    assert quantization.renamed(rename).layers == {"a": None}


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (4, "quantization"),
        ({"bits": 7}, "quantization.bits"),
        ({"bits": 1}, "quantization.bits"),
        ({"bits": True}, "quantization.bits"),
        ({"bits": 4.0}, "quantization.bits"),
        ({"bits": None}, "quantization.bits"),
        ({"group_size": 16}, "quantization.group_size"),
        ({"mode": "mxfp4", "group_size": 64}, "quantization.group_size"),
        ({"mode": "nvfp4", "bits": 8}, "quantization.bits"),
        ({"mode": "mxfp8", "bits": 4}, "quantization.bits"),
        ({"mode": "fp3"}, "quantization.mode"),
        ({"mode": ["affine"]}, "quantization.mode"),
        ({"a.b": {"bits": 9}}, "quantization.a.b.bits"),
        ({"a.b": {"bit": 4}}, "quantization.a.b.bit"),
        ({"a.b": None}, "quantization.a.b"),
        ({"a.b": 4}, "quantization.a.b"),
    ],
)
def test_bad_values(raw, key):
    """A value that MLX has no kernel for is refused with its path."""
    with pytest.raises(ConfigError) as caught:
        parse_quantization({"quantization": raw})

    assert caught.value.key == key


def test_a_bad_value_in_text_config():
    """The path begins where the key stands."""
    with pytest.raises(ConfigError) as caught:
        parse_quantization({"text_config": {"quantization": {"bits": 7}}})

    assert caught.value.key == "text_config.quantization.bits"


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "mxfp4", "bitsandbytes"])
def test_other_methods(method):
    """A checkpoint quantised in another format is sound, but not supported."""
    config = {"quantization_config": {"quant_method": method, "bits": 4}}

    with pytest.raises(UnsupportedModelError, match=f"quantised by '{method}'"):
        parse_quantization(config)
