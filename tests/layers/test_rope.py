from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from neve.contract.forward import RopeSpec
from neve.errors import ConfigError, UnsupportedModelError
from neve.layers.rope import Rotation
from neve.layers.rope_config import rope_spec
from neve.metal.attention import heads

pytestmark = pytest.mark.mlx

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
POSITIONS = [0, 1, 2, 17, 1000, 4095, 32768, 100_000]


def frequencies(spec: RopeSpec) -> np.ndarray:
    """Return the angular frequencies of a spec, float64."""
    if spec.inv_freq is not None:
        return np.array(spec.inv_freq)
    return spec.theta ** (-np.arange(0, spec.dims, 2) / spec.dims)


def naive_rotation(x: np.ndarray, positions: list[int], spec: RopeSpec) -> np.ndarray:
    """Rotate `x [T, H, D]` pair by pair, in float64."""
    out = x.astype(np.float64).copy()
    half = spec.dims // 2
    for i, freq in enumerate(frequencies(spec)):
        a, b = (2 * i, 2 * i + 1) if spec.interleaved else (i, i + half)
        for t, position in enumerate(positions):
            cos, sin = math.cos(position * freq), math.sin(position * freq)
            x0, x1 = x[t, :, a].astype(np.float64), x[t, :, b].astype(np.float64)
            out[t, :, a] = spec.scale * (x0 * cos - x1 * sin)
            out[t, :, b] = spec.scale * (x1 * cos + x0 * sin)
    return out


def angle_error(positions: list[int]) -> np.ndarray:
    """Return how far an angle in float32 may be off, `[T, 1, 1]`: frequency and product."""
    return 2 * np.array(positions)[:, None, None] * 2.0**-24 + 1e-6


@pytest.mark.parametrize(
    "spec",
    [
        rope_spec(16, 1e4, None, max_context=4096),
        rope_spec(16, 1e6, {"rope_type": "default"}, max_context=4096),
        rope_spec(16, 1e4, {"type": "linear", "factor": 4}, max_context=4096),
        rope_spec(16, 5e5, LLAMA3, max_context=131072),
        rope_spec(16, 1e6, YARN, max_context=131072),
        rope_spec(16, 1e4, None, max_context=4096, interleaved=True),
        rope_spec(16, 5e5, LLAMA3, max_context=131072, interleaved=True),
        rope_spec(8, 1e4, None, max_context=4096),
        rope_spec(8, 1e4, None, max_context=4096, interleaved=True),
    ],
    ids=lambda s: f"{s.dims}-{s.theta:g}-{'pairs' if s.interleaved else 'halves'}",
)
def test_the_rotation_is_the_naive_one(spec: RopeSpec) -> None:
    """FW-2: `context.rope` rotates each pair by position times frequency, to 100,000 tokens."""
    x = np.random.default_rng(0).normal(size=(len(POSITIONS), 3, 16)).astype(np.float32)
    rotation = Rotation(mx.array(POSITIONS, mx.int32))

    actual = np.array(rotation(mx.array(x), spec))
    expected = naive_rotation(x, POSITIONS, spec)

    bound = angle_error(POSITIONS) * spec.scale * 2 * np.abs(x).max()
    assert (np.abs(actual - expected) <= bound).all()
    assert (actual[..., spec.dims :] == x[..., spec.dims :]).all()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dims", [8, 16])
@pytest.mark.parametrize("start", [0, 5, 2000])
def test_the_rotation_is_mlx_own(interleaved: bool, dims: int, start: int) -> None:
    """FW-2: on consecutive positions the result is that of `mx.fast.rope`."""
    x = mx.random.normal((1, 2, 12, 16), key=mx.random.key(1))
    spec = rope_spec(dims, 1e4, None, max_context=4096, interleaved=interleaved)

    actual = Rotation(mx.arange(start, start + 12))(x[0].swapaxes(0, 1), spec)
    expected = mx.fast.rope(
        x, dims, traditional=interleaved, base=1e4, scale=1.0, offset=start
    )[0].swapaxes(0, 1)

    np.testing.assert_allclose(actual, expected, atol=4e-7 * (start + 12) + 1e-6)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_shape_and_dtype_are_kept(dtype: mx.Dtype) -> None:
    """FW-2: `rope` returns what it was given, rotated."""
    x = mx.ones((4, 2, 16), dtype)
    rotated = Rotation(mx.arange(4))(x, RopeSpec(8, 1e4, scale=1.25))

    assert (rotated.shape, rotated.dtype) == (x.shape, dtype)


def test_a_step_makes_one_table_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """FW-2: queries and keys of all layers of one spec share their cosines."""
    made: list[mx.array] = []
    cos = mx.cos
    monkeypatch.setattr(mx, "cos", lambda x: made.append(x) or cos(x))
    rotation = Rotation(mx.arange(4))
    for spec in (RopeSpec(8, 1e4), RopeSpec(8, 1e4), RopeSpec(8, 1e6), RopeSpec(8, 1e4)):
        rotation(mx.ones((4, 2, 8)), spec)

    assert len(made) == 2


def test_a_table_of_one_dtype_does_not_serve_another() -> None:
    """FW-2: float32 heads are not rotated by bfloat16 cosines that a layer asked for before."""
    x, spec = mx.random.normal((4, 2, 8), key=mx.random.key(0)), RopeSpec(8, 1e4)
    rotation = Rotation(mx.arange(4))
    low = rotation(x.astype(mx.bfloat16), spec)

    assert low.dtype == mx.bfloat16
    assert mx.array_equal(rotation(x, spec), Rotation(mx.arange(4))(x, spec))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("scaling", [None, LLAMA3, YARN])
def test_kernels_are_given_the_same_rotation(
    scaling: dict[str, Any] | None, interleaved: bool
) -> None:
    """FW-2, PK-1: cosines and sines of pairs, any factor included, turn heads alike."""
    spec = rope_spec(16, 1e4, scaling, max_context=131072, interleaved=interleaved)
    x = mx.random.normal((len(POSITIONS), 2, 24), key=mx.random.key(2))
    rotation = Rotation(mx.array(POSITIONS, mx.int32))
    turns = rotation.turns(spec)

    assert turns.interleaved == interleaved
    assert (turns.cos.shape, turns.cos.dtype) == ((len(POSITIONS), 8), mx.float32)
    np.testing.assert_allclose(heads._turned(x, turns), rotation(x, spec), atol=1e-5)


def test_a_step_makes_turns_once_a_spec() -> None:
    """FW-2: all layers of one spec share them."""
    rotation = Rotation(mx.arange(4))
    turns = rotation.turns(RopeSpec(8, 1e4))

    assert rotation.turns(RopeSpec(8, 1e4)) is turns
    assert rotation.turns(RopeSpec(8, 1e6)) is not turns


def test_linear_scaling_stretches_every_wavelength() -> None:
    """FW-2: `linear` divides each frequency by the factor."""
    plain = frequencies(rope_spec(16, 1e4, None, max_context=4096))
    scaled = rope_spec(16, 1e4, {"type": "linear", "factor": 4.0}, max_context=4096)

    np.testing.assert_allclose(frequencies(scaled), plain / 4, rtol=1e-12)


def test_llama3_keeps_short_wavelengths_and_stretches_long_ones() -> None:
    """FW-2: below 2048 tokens as it was, above 8192 an eighth, and monotone between."""
    plain = frequencies(rope_spec(64, 5e5, None, max_context=131072))
    scaled = frequencies(rope_spec(64, 5e5, LLAMA3, max_context=131072))
    wavelengths = 2 * np.pi / plain

    ratio = plain / scaled
    np.testing.assert_allclose(ratio[wavelengths < 8192 / 4], 1.0)
    np.testing.assert_allclose(ratio[wavelengths > 8192 / 1], 8.0)
    assert (np.diff(ratio) >= 0).all()
    between = (wavelengths > 2048) & (wavelengths < 8192)
    smooth = (8192 / wavelengths - 1) / (4 - 1)
    expected = (1 - smooth) * plain / 8 + smooth * plain
    np.testing.assert_allclose(scaled[between], expected[between])


def test_yarn_blends_along_the_dimensions() -> None:
    """FW-2: fast dimensions as they were, slow ones a fourth, a linear ramp between."""
    plain = frequencies(rope_spec(128, 1e6, None, max_context=131072))
    spec = rope_spec(128, 1e6, YARN, max_context=131072)

    def dimension(turns: float) -> float:
        return 128 * math.log(32768 / (turns * 2 * math.pi)) / (2 * math.log(1e6))

    low, high = math.floor(dimension(32)), math.ceil(dimension(1))
    ramp = np.clip((np.arange(64) - low) / (high - low), 0, 1)
    np.testing.assert_allclose(frequencies(spec), plain / 4 * ramp + plain * (1 - ramp))
    assert spec.scale == pytest.approx(0.1 * math.log(4) + 1)


def test_yarn_takes_the_models_context_where_none_is_stated() -> None:
    """FW-2: without `original_max_position_embeddings` the model's own context stands."""
    stated = rope_spec(64, 1e6, YARN, max_context=131072)
    implied = rope_spec(64, 1e6, {"type": "yarn", "factor": 4.0}, max_context=32768)

    assert stated == implied


@pytest.mark.parametrize(
    ("extra", "scale"),
    [({"attention_factor": 1.5}, 1.5), ({"attention_factor": None}, None), ({"factor": 1}, 1)],
)
def test_yarns_attention_factor_may_be_stated(
    extra: dict[str, Any], scale: float | None
) -> None:
    """FW-2: a stated attention factor counts; none, or a null, is the usual one."""
    usual = rope_spec(64, 1e6, YARN, max_context=4096).scale
    spec = rope_spec(64, 1e6, YARN | extra, max_context=4096)

    assert spec.scale == (usual if scale is None else scale)


@pytest.mark.parametrize("scaling", [None, {}, {"rope_theta": 1e6}, {"type": "default"}])
def test_no_rule_is_the_plain_embedding(scaling: dict[str, Any] | None) -> None:
    """FW-2: absent, empty and default say the same."""
    assert rope_spec(16, 1e4, scaling, max_context=4096) == RopeSpec(16, 1e4)


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_an_unknown_rule_is_refused(key: str) -> None:
    """FW-2: a rule that is not implemented is named, with those that are."""
    with pytest.raises(UnsupportedModelError, match=r"'longrope'.*default, linear, llama3"):
        rope_spec(16, 1e4, {key: "longrope"}, max_context=4096)


@pytest.mark.parametrize("key", ["mscale", "mscale_all_dim", "truncate"])
def test_a_variant_of_yarn_is_refused(key: str) -> None:
    """FW-2: a parameter that would change the embedding is never dropped in silence."""
    with pytest.raises(UnsupportedModelError, match=key):
        rope_spec(16, 1e4, YARN | {key: 1}, max_context=4096)


@pytest.mark.parametrize(
    ("scaling", "key"),
    [
        ({"type": "linear"}, "factor"),
        ({"type": "linear", "factor": "2"}, "factor"),
        ({"type": "linear", "factor": True}, "factor"),
        ({"type": "linear", "factor": 0}, "factor"),
        ({k: v for k, v in LLAMA3.items() if k != "low_freq_factor"}, "low_freq_factor"),
        (LLAMA3 | {"high_freq_factor": 1.0}, "high_freq_factor"),
        (YARN | {"beta_fast": float("nan")}, "beta_fast"),
        (YARN | {"attention_factor": "1"}, "attention_factor"),
    ],
)
def test_a_rules_parameters_are_checked(scaling: dict[str, Any], key: str) -> None:
    """FW-2: a missing, mistyped or impossible parameter is a `ConfigError` with its path."""
    with pytest.raises(ConfigError) as caught:
        rope_spec(16, 1e4, scaling, max_context=4096)

    assert caught.value.key == f"rope_scaling.{key}"


AXES = (0, 1, 2, 0, 1, 2, 0, 0)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dims", [8, 16])
def test_each_pair_turns_by_its_own_axis(interleaved: bool, dims: int) -> None:
    """FW-2: with positions of three axes, a pair is rotated as on a single axis of its own."""
    spec = RopeSpec(dims, 1e4, interleaved, axes=AXES[: dims // 2])
    positions = np.random.default_rng(1).integers(0, 3000, (3, 9)).astype(np.int32)
    x = mx.random.normal((9, 2, 16), key=mx.random.key(3))
    rotation = Rotation(mx.array(positions))
    rotated, turned = rotation(x, spec), heads._turned(x, rotation.turns(spec))
    alone = [Rotation(mx.array(row))(x, RopeSpec(dims, 1e4, interleaved)) for row in positions]

    for element in range(dims):
        pair = element // 2 if interleaved else element % (dims // 2)
        expected = alone[AXES[pair]][..., element]
        np.testing.assert_allclose(rotated[..., element], expected, atol=1e-5)
        np.testing.assert_allclose(turned[..., element], expected, atol=2e-4)
    assert mx.array_equal(rotated[..., dims:], x[..., dims:])


def test_one_axis_is_every_axis() -> None:
    """FW-2: positions `[1, T]` turn all pairs, whatever axes a family names; so do `[T]`."""
    x, positions = mx.random.normal((9, 2, 16), key=mx.random.key(3)), mx.arange(4, 13)
    several, plain = RopeSpec(16, 1e4, axes=AXES), RopeSpec(16, 1e4)
    expected = Rotation(positions)(x, plain)

    for spec in (several, plain):
        assert mx.array_equal(Rotation(positions[None])(x, spec), expected)
        assert mx.array_equal(Rotation(positions)(x, spec), expected)


@pytest.mark.parametrize("axes", [(0, 1), (0, 1, 2, 3), (0, 1, 2, 0, 1)])
def test_axes_are_one_a_pair(axes: tuple[int, ...]) -> None:
    """FW-2: of the axes 0, 1 and 2."""
    with pytest.raises(ValueError, match="axes must be 4"):
        RopeSpec(8, 1e4, axes=axes)
