from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.contract.cache_spec import (
    Alias,
    CacheLayout,
    FullAttention,
    Owned,
    Uncached,
    group_layers,
    uniform_layout,
)

NARROW, WIDE = FullAttention(2, 8), FullAttention(1, 16)

specs = st.builds(
    FullAttention,
    kv_heads=st.integers(1, 3),
    head_dim=st.sampled_from([8, 16]),
    v_head_dim=st.sampled_from([None, 8, 16]),
)


@pytest.mark.parametrize(
    ("groups", "routes", "sentence"),
    [
        ([], [], "at least one layer"),
        ([NARROW, WIDE, NARROW], [Owned(0, 0), Owned(1, 0), Owned(2, 0)], "groups 0 and 2"),
        ([NARROW], [Owned(0, 0), Owned(1, 0)], "layer 1: there is no group 1"),
        ([NARROW], [Owned(-1, 0)], "layer 0: there is no group -1"),
        ([NARROW, WIDE], [Owned(0, 0), Uncached()], "group 1 has no layer"),
        ([NARROW], [Owned(0, 1)], "group 0: ordinals"),
        ([NARROW], [Owned(0, 0), Owned(0, 0)], "group 0: ordinals"),
        ([NARROW], [Owned(0, 1), Owned(0, 0)], "group 0: ordinals"),
        ([NARROW], [Owned(0, 0), Alias(7)], "layer 1: there is no anchor layer 7"),
        ([NARROW], [Owned(0, 0), Alias(-1)], "layer 1: there is no anchor layer -1"),
        ([NARROW], [Owned(0, 0), Alias(1)], "layer 1: there is no anchor layer 1 before"),
        ([NARROW], [Alias(1), Owned(0, 0)], "layer 0: there is no anchor layer 1 before"),
        ([NARROW], [Owned(0, 0), Alias(0), Alias(1)], "layer 2: anchor 1 owns no storage"),
        ([NARROW], [Owned(0, 0), Uncached(), Alias(1)], "layer 2: anchor 1 owns no storage"),
    ],
)
def test_a_broken_rule_names_its_layer_or_group(
    groups: list[FullAttention], routes: list[Any], sentence: str
) -> None:
    """GR-1: a layout that breaks a rule cannot be built; the error says where."""
    with pytest.raises(ValueError, match=sentence):
        CacheLayout(groups, routes)


@pytest.mark.parametrize("field", ["kv_heads", "head_dim", "v_head_dim"])
def test_sizes_are_positive(field: str) -> None:
    """GR-1: a spec without heads or width cannot be built; the error names the field."""
    sizes = {"kv_heads": 1, "head_dim": 8, "v_head_dim": 8} | {field: 0}

    with pytest.raises(ValueError, match=field):
        FullAttention(**sizes)


def test_the_block_size_multiple_is_positive() -> None:
    """GR-1: no block size is a multiple of 0."""
    with pytest.raises(ValueError, match="block_size_multiple"):
        CacheLayout([NARROW], [Owned(0, 0)], 0)


def test_layers_of_equal_layout_share_a_group_however_it_is_spelt() -> None:
    """GR-1: a value width that is the key width is the same layout as none stated."""
    layout = group_layers([FullAttention(2, 8), FullAttention(2, 8, 8)])

    assert layout.routes == (Owned(0, 0), Owned(0, 1))


@settings(deadline=None)
@given(st.lists(specs, min_size=1, max_size=12))
def test_grouped_layers_are_a_valid_layout(layers: list[FullAttention]) -> None:
    """GR-1: each layer's route leads to its own spec, at its place among equal layers."""
    layout = group_layers(layers)

    assert layout.num_layers == len(layers)
    assert sum(layout.num_group_layers(g) for g in range(len(layout.groups))) == len(layers)
    for layer, spec in enumerate(layers):
        owner = layout.owner(layer)
        assert layout.groups[owner.group] == spec
        assert owner.ordinal == layers[:layer].count(spec)


@settings(deadline=None)
@given(specs, st.integers(1, 40))
def test_a_uniform_layout_is_one_group(spec: FullAttention, num_layers: int) -> None:
    """GR-1: layers that are all alike form one group, in layer order."""
    layout = uniform_layout(spec, num_layers)

    assert layout == group_layers([spec] * num_layers)
    assert [layout.owner(i).ordinal for i in range(num_layers)] == list(range(num_layers))


def test_an_alias_leads_to_its_anchors_storage() -> None:
    """GR-1: an alias owns no storage; a layer without a cache leads nowhere."""
    layout = CacheLayout([NARROW], [Owned(0, 0), Uncached(), Owned(0, 1), Alias(2)])

    assert layout.owner(3) == Owned(0, 1)
    assert layout.num_group_layers(0) == 2
    with pytest.raises(ValueError, match="layer 1 has no cache"):
        layout.owner(1)


def test_a_block_takes_keys_and_values_of_all_layers_of_its_group() -> None:
    """GR-1: the bytes of a block follow from layers, heads, widths and tokens."""
    spec = FullAttention(kv_heads=2, head_dim=8, v_head_dim=4)
    layout = group_layers([spec, WIDE, spec, spec])

    assert layout.block_bytes(0, block_size=16, itemsize=2) == 3 * 2 * (8 + 4) * 16 * 2
    assert layout.block_bytes(1, block_size=16, itemsize=4) == 1 * 1 * (16 + 16) * 16 * 4
