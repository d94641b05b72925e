"""Sections of config.json: kinds of keys, their limits, other names, and paths in errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from neve.checkpoint.config import (
    Section,
    also_called,
    count,
    epsilon,
    factor,
    layers,
    merged_section,
    read_config,
    rope_base,
    share,
    size,
    text_section,
    tokens,
    vocabulary,
)
from neve.contract import limits
from neve.contract.errors import ConfigError
from neve.contract.limits import Limits


@attrs.frozen(kw_only=True)
class Kinds:
    """A key of each kind."""

    width: int = size(8)
    convolution: int = size(4, least=2)
    shared: int = count(0)
    depth: int = layers(2)
    vocab: int = vocabulary(100)
    context: int = tokens(64)
    eps: float = epsilon(1e-6)
    scale: float = factor(1.0)
    part: float = share(1.0)
    base: float = rope_base(1e4)
    plain_int: int = 1
    plain_float: float = 0.0
    flag: bool = False
    listed: tuple[int, ...] = ()


KINDS: Mapping[str, Limits] = {
    "width": limits.SIZE,
    "convolution": Limits(2, limits.SIZE.most),
    "shared": limits.COUNT,
    "depth": limits.LAYERS,
    "vocab": limits.VOCABULARY,
    "context": limits.TOKENS,
    "eps": limits.EPSILON,
    "scale": limits.FACTOR,
    "part": limits.SHARE,
    "base": limits.ROPE_BASE,
    "plain_int": limits.SIZE,
    "plain_float": limits.REAL,
}
BEYOND = [-(10**400), -(2**40), 2**40, 4 * 10**12, 10**400, 1e308, float("inf"), float("nan")]


@pytest.mark.parametrize(("key", "within"), KINDS.items())
def test_both_limits_of_a_kind_are_allowed(key: str, within: Limits) -> None:
    """FA: what lies just inside is a value, and what lies just outside an error."""
    kind = type(getattr(Kinds(), key))
    for value in (within.least, within.most):
        assert getattr(read_config({key: kind(value)}, Kinds), key) == value
    for value in (within.least - max(1, abs(within.least)), within.most * 2):
        with pytest.raises(ConfigError) as caught:
            read_config({key: kind(value)}, Kinds)
        assert caught.value.key == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(key, value, id=f"{key}-{i}")
        for key, within in KINDS.items()
        for i, value in enumerate(BEYOND)
        if not within.least <= value <= within.most
    ],
)
def test_no_number_overflows(key: str, value: float) -> None:
    """FA: whatever a number is, the error names its key; none is an OverflowError."""
    with pytest.raises(ConfigError) as caught:
        read_config({key: value}, Kinds)
    assert caught.value.key == key


@pytest.mark.parametrize("key", sorted(KINDS))
@pytest.mark.parametrize("value", ["8", True, [8], {"a": 8}])
def test_a_number_is_nothing_else(key: str, value: object) -> None:
    """FA: neither text nor a bool passes for one."""
    with pytest.raises(ConfigError, match=f"{key}: must be"):
        read_config({key: value}, Kinds)


@attrs.frozen(kw_only=True)
class Aliased:
    """Keys with other names."""

    width: int = size(aliases=["dim", "n_embd"])
    tied: bool = attrs.field(default=True, metadata=also_called("tie"))
    rest: int = size(3)


@pytest.mark.parametrize(
    ("keys", "width"),
    [
        ({"width": 5}, 5),
        ({"width": 5, "n_embd": 6}, 6),
        ({"width": 5, "n_embd": 6, "dim": 7}, 7),
        ({"width": 5, "dim": None}, 5),
    ],
)
def test_other_names_win(keys: dict[str, Any], width: int) -> None:
    """FA: the first of a key's other names counts, and null is no value."""
    assert read_config(keys, Aliased).width == width
    assert read_config(keys | {"tie": False}, Aliased).tied is False


@pytest.mark.parametrize(
    ("keys", "named"),
    [({"n_embd": 0}, "n_embd"), ({"width": 0}, "width"), ({"width": 4, "tie": 1}, "tie")],
)
def test_errors_name_a_key_as_it_stands(keys: dict[str, Any], named: str) -> None:
    """FA: whoever wrote `n_embd` is told of `n_embd`."""
    with pytest.raises(ConfigError) as caught:
        read_config(keys, Aliased)
    assert caught.value.key == named


def test_a_missing_key_is_named_with_its_other_names() -> None:
    """FA: any of them would do."""
    with pytest.raises(ConfigError, match=r"width: required key is missing .*dim, n_embd"):
        read_config({"rest": 1}, Aliased)


# -- where keys stand ----------------------------------------------------------------------


@pytest.mark.parametrize("nested", [False, True])
def test_the_text_models_keys_stand_in_either_place(nested: bool) -> None:
    """FA: in `text_config`, or at the top; the path says which."""
    raw = {"text_config": {"width": 0}, "width": 9} if nested else {"width": 0}

    with pytest.raises(ConfigError) as caught:
        text_section(raw).read(Kinds)
    assert caught.value.key == ("text_config.width" if nested else "width")


@pytest.mark.parametrize("read", [text_section, merged_section])
def test_a_text_config_that_is_no_object(read: Any) -> None:
    """FA: it is named."""
    with pytest.raises(ConfigError, match="text_config: must be an object, got 13"):
        read({"text_config": 13})


def test_merged_keys_keep_their_paths() -> None:
    """FA: a nested key wins over its namesake, null does not, and errors tell them apart."""
    raw = {"width": 5, "depth": 3, "text_config": {"width": 6, "depth": None, "shared": -1}}
    merged = merged_section(raw)

    assert (merged.keys["width"], merged.keys["depth"]) == (6, 3)
    with pytest.raises(ConfigError) as caught:
        merged.read(Kinds)
    assert caught.value.key == "text_config.shared"
    assert merged.key("depth") == "depth"


def test_objects_inside_objects_know_their_path() -> None:
    """FA: errors carry it from the top; a missing object is an empty one."""
    section = Section({"text_config": {"rope": {"base": 0}}}).at("text_config").at("rope")

    with pytest.raises(ConfigError) as caught:
        section.read(Kinds)
    assert caught.value.key == "text_config.rope.base"
    assert section.at("missing").keys == {}


@attrs.frozen
class Heads:
    """Keys that depend on one another."""

    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int | None


@pytest.mark.parametrize(
    ("heads", "key"),
    [
        (Heads(64, 8, 3), "num_key_value_heads"),
        (Heads(64, 8, 16), "num_key_value_heads"),
        (Heads(64, 7, None), "num_attention_heads"),
        (Heads(64, 128, None), "num_attention_heads"),
    ],
)
def test_heads_that_do_not_divide_are_named(heads: Heads, key: str) -> None:
    """FA: with both keys in the sentence."""
    section = Section({}, "text_config.")

    def read() -> int:
        return section.head_dim(heads, None) + section.kv_heads(heads)

    with pytest.raises(ConfigError, match=f"text_config.{key}: must divide"):
        read()


def test_heads_that_are_not_stated() -> None:
    """FA: as many key heads as query heads, which share the hidden size."""
    section, heads = Section({}), Heads(64, 8, None)

    assert (section.head_dim(heads, None), section.kv_heads(heads)) == (8, 8)
    assert (section.head_dim(heads, 24), section.kv_heads(Heads(64, 8, 2))) == (24, 2)
