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
    Recurrent,
    RecurrentState,
    SlidingWindow,
    StateTensor,
    Uncached,
    layer_routes,
    uniform_layout,
)

NARROW, WIDE = FullAttention(2, 8), FullAttention(1, 16)
SHORT, LONG = SlidingWindow(16, 2, 8), SlidingWindow(64, 2, 8)

CONV = RecurrentState([StateTensor("conv", (3, 8))])
DELTA = RecurrentState([StateTensor("conv", (3, 8)), StateTensor("sum", (2, 4, 4), "float32")])

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


@pytest.mark.parametrize(
    ("states", "routes", "sentence"),
    [
        ([CONV, DELTA, CONV], [Recurrent(0, 0), Recurrent(1, 0)], "state groups 0 and 2"),
        ([], [Recurrent(0, 0)], "layer 0: there is no state group 0"),
        ([CONV], [Recurrent(-1, 0)], "layer 0: there is no state group -1"),
        ([CONV], [Owned(0, 0)], "layer 0: there is no group 0"),
        ([CONV], [Uncached()], "state group 0 has no layer"),
        ([CONV], [Recurrent(0, 1)], "state group 0: ordinals"),
        ([CONV], [Recurrent(0, 0), Recurrent(0, 0)], "state group 0: ordinals"),
        ([CONV], [Recurrent(0, 0), Alias(0)], "layer 1: anchor 0 owns no storage"),
    ],
)
def test_a_broken_rule_of_states_names_its_layer_or_group(
    states: list[RecurrentState], routes: list[Any], sentence: str
) -> None:
    """GR-1: recurrent layers follow the rules of attention layers, in groups of their own."""
    with pytest.raises(ValueError, match=sentence):
        CacheLayout([], routes, states=states)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("", (2,)), "name"),
        (("a", ()), "shape"),
        (("a", (2, 0)), "shape"),
        (("a", (2,), "int8"), "dtype"),
        (("a", (2,), "f32"), "dtype"),
    ],
)
def test_a_state_tensor_has_a_name_a_shape_and_a_float_dtype(
    arguments: tuple[Any, ...], sentence: str
) -> None:
    """GR-1: a tensor that cannot be built is refused; the error names the field."""
    with pytest.raises(ValueError, match=sentence):
        StateTensor(*arguments)


@pytest.mark.parametrize(
    ("tensors", "sentence"), [([], "tensors"), ([StateTensor("a", (1,))] * 2, "names")]
)
def test_a_state_has_tensors_of_different_names(
    tensors: list[StateTensor], sentence: str
) -> None:
    """GR-1: a state without tensors, or with two of one name, cannot be built."""
    with pytest.raises(ValueError, match=sentence):
        RecurrentState(tensors)


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
    layout = layer_routes([FullAttention(2, 8), FullAttention(2, 8, 8)])

    assert layout.routes == (Owned(0, 0), Owned(0, 1))


@settings(deadline=None)
@given(st.lists(specs, min_size=1, max_size=12))
def test_grouped_layers_are_a_valid_layout(layers: list[FullAttention]) -> None:
    """GR-1: each layer's route leads to its own spec, at its place among equal layers."""
    layout = layer_routes(layers)

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

    assert layout == layer_routes([spec] * num_layers)
    assert [layout.owner(i).ordinal for i in range(num_layers)] == list(range(num_layers))


@settings(deadline=None)
@given(st.lists(st.one_of(specs, st.sampled_from([CONV, DELTA, None])), min_size=1))
def test_routed_layers_are_a_valid_layout(layers: list[Any]) -> None:
    """GR-1: each layer of any kind leads to its own spec; without one it keeps nothing."""
    layout = layer_routes(layers)

    for layer, (spec, route) in enumerate(zip(layers, layout.routes, strict=True)):
        if spec is None:
            assert route == Uncached()
        elif isinstance(spec, RecurrentState):
            assert layout.state(layer) == spec
            assert route == Recurrent(layout.states.index(spec), layers[:layer].count(spec))
        else:
            assert layout.groups[layout.owner(layer).group] == spec


def test_layers_without_a_state_have_none() -> None:
    """GR-1: attention layers and layers that keep nothing lead to no state."""
    layout = layer_routes([CONV, NARROW, None])

    assert layout.state(0) == CONV
    for layer in (1, 2):
        with pytest.raises(ValueError, match=f"layer {layer} has no state"):
            layout.state(layer)
    with pytest.raises(ValueError, match="layer 0 has no cache"):
        layout.owner(0)


def test_a_sequences_state_takes_all_its_layers_and_tensors() -> None:
    """GR-5: its bytes follow from shapes and dtypes; a declared dtype is not the model's."""
    layout = layer_routes([CONV, NARROW, DELTA, DELTA])

    assert layout.state_bytes(itemsize=2) == 24 * 2 + 2 * (24 * 2 + 32 * 4)
    assert layout.state_bytes(itemsize=4) == 24 * 4 + 2 * (24 * 4 + 32 * 4)
    assert uniform_layout(NARROW, 3).state_bytes(4) == 0


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
    layout = layer_routes([spec, WIDE, spec, spec])

    assert layout.block_bytes(0, block_size=16, itemsize=2) == 3 * 2 * (8 + 4) * 16 * 2
    assert layout.block_bytes(1, block_size=16, itemsize=4) == 1 * 1 * (16 + 16) * 16 * 4


# -- windows -----------------------------------------------------------------------------


def test_windows_of_other_lengths_are_other_groups() -> None:
    """GR-1: layers of equal kind and layout form a group; a window is part of the kind."""
    layout = layer_routes([SHORT, NARROW, SHORT, LONG, SlidingWindow(16, 2, 8, 8), LONG])

    assert layout.groups == (SHORT, NARROW, LONG)
    assert layout.routes == (
        Owned(0, 0),
        Owned(1, 0),
        Owned(0, 1),
        Owned(2, 0),
        Owned(0, 2),
        Owned(2, 1),
    )


@pytest.mark.parametrize(
    ("specs", "primary", "windows"),
    [
        ([NARROW], 0, ()),
        ([NARROW, SHORT], 0, (1,)),
        ([SHORT, NARROW], 1, (0,)),
        ([SHORT, LONG, WIDE, NARROW], 2, (0, 1)),
        ([SHORT, LONG], 0, (0, 1)),
        ([CONV, SHORT, NARROW], 1, (0,)),
        ([CONV], 0, ()),
    ],
)
def test_the_primary_group_is_the_first_that_keeps_everything(
    specs: list[Any], primary: int, windows: tuple[int, ...]
) -> None:
    """GR-1: lengths are counted in a group without a window, wherever it stands."""
    layout = layer_routes(specs)

    assert (layout.primary, layout.windows) == (primary, windows)


def test_routed_aliases_read_the_anchor_of_their_kind() -> None:
    """GR-1: an alias owns no storage and makes no group, whatever its anchor keeps."""
    layout = layer_routes([SHORT, NARROW, Alias(0), Alias(1), None])

    assert layout.groups == (SHORT, NARROW)
    assert [layout.owner(i) for i in range(4)] == [Owned(0, 0), Owned(1, 0)] * 2
    assert [layout.num_group_layers(g) for g in range(2)] == [1, 1]
    assert layout.routes[4] == Uncached()


@pytest.mark.parametrize(
    ("specs", "sentence"),
    [
        ([Alias(0)], "layer 0: there is no anchor layer 0 before it"),
        ([SHORT, Alias(2), NARROW], "layer 1: there is no anchor layer 2 before it"),
        ([SHORT, Alias(0), Alias(1)], "layer 2: anchor 1 owns no storage"),
        ([CONV, SHORT, Alias(0)], "layer 2: anchor 0 owns no storage"),
        ([None, SHORT, Alias(0)], "layer 2: anchor 0 owns no storage"),
    ],
)
def test_routed_aliases_follow_the_rules(specs: list[Any], sentence: str) -> None:
    """GR-1: an alias points at an earlier owner, not at an alias; the error says which."""
    with pytest.raises(ValueError, match=sentence):
        layer_routes(specs)


def test_a_windows_block_is_as_large_as_any_other() -> None:
    """GR-4: a block's bytes follow from layers, heads, widths and tokens alone."""
    layout = layer_routes([SHORT, NARROW, SHORT, Alias(0)])

    assert layout.block_bytes(0, block_size=16, itemsize=2) == 2 * 2 * (8 + 8) * 16 * 2
    assert layout.block_bytes(1, block_size=16, itemsize=2) == 1 * 2 * (8 + 8) * 16 * 2
