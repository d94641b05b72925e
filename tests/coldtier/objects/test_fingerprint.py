"""The model fingerprint."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.coldtier.objects.fingerprint import (
    FingerprintComponents,
    GroupGeometry,
    canonical_config,
    encode,
    fingerprint,
    geometry,
)
from neve.contract.cache_spec import FullAttention, SlidingWindow, layer_routes
from neve.contract.page_format import PageFormat, Plane, keys_and_values

GROUP = GroupGeometry(4, keys_and_values(2, 64))
COMPONENTS = FingerprintComponents(
    family="qwen3",
    family_state_version=1,
    model_type="qwen3",
    config={"model_type": "qwen3", "rope_theta": 1e6, "text_config": {"a": [1, None]}},
    weights=bytes(range(32)),
    block_size=16,
    groups=(GROUP,),
    cache_dtype="bfloat16",
    compute_dtype="bfloat16",
)

CHANGED: Mapping[str, Any] = {
    "family": "qwen3x",
    "family_state_version": 2,
    "model_type": "qwen4",
    "config": {**COMPONENTS.config, "rope_theta": 1e6 + 1},
    "weights": bytes(32),
    "block_size": 32,
    "groups": (GROUP, GROUP),
    "cache_dtype": "float16",
    "compute_dtype": "float32",
    "state_version": COMPONENTS.state_version + 1,
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
configs = st.dictionaries(st.text(max_size=4), json_values, max_size=4)
short = st.text(alphabet="ab,:", max_size=3)
counts = st.integers(1, 12)
planes = st.builds(
    Plane,
    st.sampled_from(["keys", "values", "scales"]),
    counts,
    counts,
    st.sampled_from([None, "float32"]),
)
pages = st.builds(keys_and_values, counts, counts, counts) | st.builds(
    PageFormat,
    st.lists(planes, min_size=1, max_size=3, unique_by=lambda plane: plane.name),
)
components = st.builds(
    FingerprintComponents,
    family=short,
    family_state_version=counts,
    model_type=short,
    config=st.dictionaries(short, counts | short | st.booleans() | st.none(), max_size=2),
    weights=st.sampled_from([bytes(32), bytes(range(32))]),
    block_size=counts,
    groups=st.lists(st.builds(GroupGeometry, counts, pages), max_size=2),
    cache_dtype=short,
    compute_dtype=short,
    state_version=counts,
)


def _exact(value: Any) -> Any:
    """Return something that is equal only for values that JSON tells apart."""
    if isinstance(value, dict):
        return {key: _exact(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_exact(entry) for entry in value]
    return repr(value)


def test_a_fingerprint_is_pinned() -> None:
    """CT-4: stores outlive releases: who changes this value makes every store useless."""
    digest = fingerprint(COMPONENTS).hex()

    assert digest == "b19c5d6d2cc20fe8f37de332ed52d09e86fac3235de466bb44dbf6a66ca74d26"


@pytest.mark.parametrize("field", [field.name for field in attrs.fields(FingerprintComponents)])
def test_any_change_of_a_component_changes_it(field: str) -> None:
    """CT-4: no component is without effect."""
    changed = attrs.evolve(COMPONENTS, **{field: CHANGED[field]})

    assert fingerprint(changed) != fingerprint(COMPONENTS)


@pytest.mark.parametrize(
    "changed",
    [
        GroupGeometry(3, keys_and_values(2, 64)),
        GroupGeometry(4, keys_and_values(3, 64)),
        GroupGeometry(4, keys_and_values(2, 3, 64)),
        GroupGeometry(4, keys_and_values(2, 64, 3)),
    ],
)
def test_any_change_of_a_group_changes_it(changed: GroupGeometry) -> None:
    """CT-4: each number of a group's geometry has an effect."""
    assert fingerprint(attrs.evolve(COMPONENTS, groups=(changed,))) != fingerprint(COMPONENTS)


@given(components, components, st.sets(st.sampled_from(list(CHANGED))))
def test_unequal_components_have_unequal_encodings(
    one: FingerprintComponents, two: FingerprintComponents, fields: set[str]
) -> None:
    """CT-4: the encoding loses nothing, however few or many components differ."""
    other = attrs.evolve(one, **{field: getattr(two, field) for field in fields})
    same = one == other and _exact(dict(one.config)) == _exact(dict(other.config))

    assert (encode(one) == encode(other)) is same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"family": "a", "model_type": "bc"}, {"family": "ab", "model_type": "c"}),
        ({"cache_dtype": "a", "compute_dtype": ""}, {"cache_dtype": "", "compute_dtype": "a"}),
        (
            {"groups": (GroupGeometry(1, keys_and_values(12, 1)),)},
            {"groups": (GroupGeometry(11, keys_and_values(2, 1)),)},
        ),
        ({"family_state_version": 12, "block_size": 1}, {"family_state_version": 1}),
        ({"family": "\ud800"}, {"family": "?"}),
    ],
)
def test_neighbours_do_not_run_together(one: dict[str, Any], other: dict[str, Any]) -> None:
    """CT-4: what moves from one component to the next is seen."""
    first, second = (attrs.evolve(COMPONENTS, **changes) for changes in (one, other))

    assert fingerprint(first) != fingerprint(second)


@given(configs, st.randoms())
def test_the_order_of_keys_does_not_matter(config: dict[str, Any], random: Any) -> None:
    """CT-4: one config written in another order is the same model."""

    def shuffled(value: Any) -> Any:
        if isinstance(value, list):
            return [shuffled(entry) for entry in value]
        if not isinstance(value, dict):
            return value
        entries = [(key, shuffled(entry)) for key, entry in value.items()]
        random.shuffle(entries)
        return dict(entries)

    assert canonical_config(shuffled(config)) == canonical_config(config)


@given(configs, configs)
def test_configs_are_told_apart_as_json_does(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    """CT-4: two configs share their text only if no reader could tell them apart."""
    same = _exact(one) == _exact(other)

    assert (canonical_config(one) == canonical_config(other)) is same


@given(configs)
def test_a_config_survives_its_text(config: dict[str, Any]) -> None:
    """CT-4: the text holds all of a config, odd floats included."""
    assert _exact(json.loads(canonical_config(config))) == _exact(config)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 1.0), (1, True), (0, None), (0.0, -0.0), ("1", 1), ([], {}), (0.1, 0.1 + 2**-56)],
)
def test_lookalikes_are_told_apart(one: object, other: object) -> None:
    """CT-4: a family may treat them differently, so they are different."""
    assert canonical_config({"key": one}) != canonical_config({"key": other})


def test_numbers_that_json_does_not_have_are_words() -> None:
    """CT-4: NaN, which is unequal to itself, has one text."""
    config = {"b": math.nan, "a": [math.inf, -math.inf]}

    assert canonical_config(config) == b'{"a":[Infinity,-Infinity],"b":NaN}'
    assert canonical_config({"b": float("-nan")}) == b'{"b":NaN}'


def test_a_lone_surrogate_has_a_text() -> None:
    """CT-4: a string that JSON can carry and UTF-8 cannot is a value like any other."""
    one, other = (json.loads(f'{{"key": "\\{escape}"}}') for escape in ("ud800", "ud801"))

    assert canonical_config(one) == b'{"key":"\\ud800"}'
    assert canonical_config(other) != canonical_config(one)


def test_a_checkpoints_place_is_no_part_of_it() -> None:
    """CT-4: only the path that a config was saved from is left out, and only at the top."""
    moved = {**COMPONENTS.config, "_name_or_path": "/home/somebody/checkpoint-500"}
    inner = {**COMPONENTS.config, "text_config": {"a": [1, None], "_name_or_path": "x"}}
    noted = {**COMPONENTS.config, "transformers_version": "5.0"}

    moved, inner, noted = (
        fingerprint(attrs.evolve(COMPONENTS, config=config)) for config in (moved, inner, noted)
    )

    assert moved == fingerprint(COMPONENTS)
    assert len({moved, inner, noted}) == 3


def test_a_config_that_is_not_of_json_is_refused() -> None:
    """CT-4: nothing is turned into text by guess."""
    with pytest.raises(TypeError):
        canonical_config({"key": object()})


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_digest_of_another_length_is_refused(length: int) -> None:
    """CT-4: what is no digest of the weights is not taken for one."""
    with pytest.raises(ValueError, match="Length of 'weights'"):
        attrs.evolve(COMPONENTS, weights=bytes(length))


def test_the_geometry_of_a_layout() -> None:
    """CT-4: groups in their order, each with the layers that own storage."""
    narrow, wide = FullAttention(1, 64), FullAttention(2, 128, v_head_dim=96)

    assert geometry(layer_routes([narrow, wide, narrow])) == (
        GroupGeometry(2, keys_and_values(1, 64)),
        GroupGeometry(1, keys_and_values(2, 128, 96)),
    )


def test_the_fingerprint_of_a_known_layout_stays() -> None:
    """CT-4: a store that an earlier release wrote is found again, down to the last bit."""
    narrow, wide = FullAttention(1, 64), FullAttention(2, 128, v_head_dim=96)
    layout = layer_routes([narrow, wide, narrow, SlidingWindow(64, 1, 32)])
    known = FingerprintComponents(
        family="f",
        family_state_version=3,
        model_type="m",
        config={"a": 1},
        weights=bytes(range(32)),
        block_size=16,
        groups=geometry(layout),
        cache_dtype="bfloat16",
        compute_dtype="bfloat16",
    )

    assert fingerprint(known).hex() == (
        "d0c0a1d6eb20156d452f3312a0c497e840748fbaef59bee210be4615b47dc2f8"
    )


KEYS, VALUES, SCALES = Plane("keys", 2, 64), Plane("values", 2, 64), Plane("scales", 2, 1)


def test_any_change_of_a_plane_changes_it() -> None:
    """CT-4: names, order, heads, widths and dtypes of all planes tell models apart."""
    pages = [
        (KEYS, VALUES),
        (VALUES, KEYS),
        (KEYS, VALUES, SCALES),
        (KEYS, SCALES, VALUES),
        (KEYS, VALUES, attrs.evolve(SCALES, name="norms")),
        (KEYS, VALUES, attrs.evolve(SCALES, heads=1)),
        (KEYS, VALUES, attrs.evolve(SCALES, dim=2)),
        (KEYS, VALUES, attrs.evolve(SCALES, dtype="float32")),
        (KEYS, attrs.evolve(VALUES, dtype="float32")),
        (attrs.evolve(KEYS, heads=1), VALUES),
    ]
    groups = [GroupGeometry(4, PageFormat(planes)) for planes in pages]
    prints = [fingerprint(attrs.evolve(COMPONENTS, groups=(group,))) for group in groups]

    assert len(set(prints)) == len(pages)
