from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.coldtier.objects.keys import ColdGroup
from neve.contract.cache_spec import (
    Alias,
    FullAttention,
    RecurrentState,
    SlidingWindow,
    StateTensor,
    layer_routes,
)
from neve.contract.sidecar import (
    SIDECAR_GROUPS,
    SidecarLayout,
    SidecarPolicy,
    SidecarTensor,
    anchor_grid,
    recurrent_policy,
    window_policy,
)

WINDOW = 512
KEYS = SidecarTensor("keys", (4, WINDOW, 8), "bfloat16")
LAYOUT = SidecarLayout(3, [KEYS, attrs.evolve(KEYS, name="values")])
SCALED = SidecarPolicy("sliding_window", LAYOUT, scaled_axis=1)
MAMBA = SidecarLayout(
    23,
    [
        SidecarTensor("conv", (3, 6144), "bfloat16"),
        SidecarTensor("ssm", (64, 64, 128), "float32"),
    ],
)


def test_the_groups_are_those_of_the_cold_tier() -> None:
    """SD-2: a policy can name each group of cold objects but that of the blocks."""
    assert {group.value for group in ColdGroup} - {"kv"} == SIDECAR_GROUPS


def test_a_layer_keeps_tensors_of_different_kinds() -> None:
    """SD-3: a Mamba-2 layer keeps a bf16 convolution and an f32 state, counted exactly."""
    layer_bytes = 3 * 6144 * 2 + 64 * 64 * 128 * 4

    assert [tensor.num_bytes for tensor in MAMBA.tensors] == [36864, 2097152]
    assert (MAMBA.layer_bytes, MAMBA.num_bytes) == (layer_bytes, 23 * layer_bytes)


@given(st.integers(WINDOW, 10 * WINDOW))
def test_at_and_above_the_extent_the_layout_is_the_declared_one(boundary: int) -> None:
    """SD-2: a boundary-scaled layout is the identity at and above its window."""
    assert SCALED.expected_at(boundary) == LAYOUT


@given(st.integers(1, WINDOW - 1))
def test_below_the_extent_one_axis_follows_the_boundary(boundary: int) -> None:
    """SD-2: below the window the declared axis is the boundary; all else is frozen."""
    keys = SidecarTensor("keys", (4, boundary, 8), "bfloat16")
    expected = SidecarLayout(3, [keys, attrs.evolve(keys, name="values")])

    assert SCALED.expected_at(boundary) == expected
    assert expected.layer_bytes == 2 * 4 * boundary * 8 * 2


@given(st.integers(1, 10 * WINDOW))
def test_without_a_scaled_axis_nothing_follows_the_boundary(boundary: int) -> None:
    """SD-2: a policy that scales no axis expects one layout everywhere."""
    assert SidecarPolicy("ssm_state", MAMBA).expected_at(boundary) == MAMBA


@pytest.mark.parametrize("boundary", [0, -16])
def test_a_boundary_is_positive(boundary: int) -> None:
    """SD-2: there is no state at or before the first token."""
    with pytest.raises(ValueError, match="positive number of tokens"):
        SCALED.expected_at(boundary)


@pytest.mark.parametrize("axis", [-1, 2, 3])
def test_the_scaled_axis_exists_in_every_tensor(axis: int) -> None:
    """SD-2: the declared axis is one of each tensor's."""
    with pytest.raises(ValueError, match=f"scaled_axis {axis} is no axis of"):
        SidecarPolicy("ssm_state", MAMBA, scaled_axis=axis)


def test_the_scaled_axis_has_one_extent() -> None:
    """SD-2: one boundary cannot stand for two windows."""
    with pytest.raises(ValueError, match=r"as long in every tensor, got \[3, 64\]"):
        SidecarPolicy("ssm_state", MAMBA, scaled_axis=0)


@pytest.mark.parametrize("group", ["kv", "", "Gdn_State"])
def test_the_group_is_a_sidecars(group: str) -> None:
    """SD-2: an unknown name space cannot be declared."""
    with pytest.raises(ValueError, match="group"):
        SidecarPolicy(group, LAYOUT)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "Keys"),
        ("name", "a.b"),
        ("name", "keys\n"),
        ("dims", ()),
        ("dims", (4, 0)),
        ("dims", (1,) * 9),
        ("dtype", "float64"),
        ("dtype", "BF16"),
    ],
)
def test_a_tensor_is_named_and_not_empty(field: str, value: Any) -> None:
    """SD-2: a tensor without name, extent or known dtype is refused; the error says which."""
    with pytest.raises(ValueError, match=field):
        attrs.evolve(KEYS, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_layers", 0),
        ("tensors", ()),
        ("tensors", [attrs.evolve(KEYS, name=f"t{i}") for i in range(17)]),
        ("tensors", [KEYS, KEYS]),
    ],
)
def test_a_layout_has_1_to_16_tensors_a_layer(field: str, value: Any) -> None:
    """SD-2: a layout without layers or tensors, or with two of one name, is refused."""
    with pytest.raises(ValueError, match=field):
        attrs.evolve(LAYOUT, **{field: value})


# -- recurrent layers --------------------------------------------------------------------

CONV_AND_SSM = RecurrentState(
    [StateTensor("conv", (3, 64)), StateTensor("ssm", (4, 8, 16), "float32")]
)
ATTENTION = FullAttention(1, 8)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_recurrent_familys_sidecar_follows_its_layout(dtype: str) -> None:
    """SD-3, SD-10: one entry a recurrent layer; without a dtype of its own, in the model's."""
    layout = layer_routes([CONV_AND_SSM, ATTENTION, CONV_AND_SSM, None, CONV_AND_SSM])
    policy = recurrent_policy("ssm_state", layout, dtype)
    expected = SidecarLayout(
        3,
        [
            SidecarTensor("conv", (3, 64), dtype),
            SidecarTensor("ssm", (4, 8, 16), "float32"),
        ],
    )

    assert policy == SidecarPolicy("ssm_state", expected)
    assert policy.layout.num_bytes == 3 * layout.states[0].num_bytes(
        4 if dtype == "float32" else 2
    )


@given(st.integers(1, 10**6))
def test_recurrent_state_is_as_large_at_any_boundary(boundary: int) -> None:
    """SD-2: a state sums up however many tokens in the same tensors."""
    policy = recurrent_policy("gdn_state", layer_routes([CONV_AND_SSM]), "bfloat16")

    assert policy.expected_at(boundary) == policy.layout


def test_policies_of_two_dtypes_or_families_differ() -> None:
    """SD-7: a sidecar of another dtype or another family's is never the expected one."""
    layout = layer_routes([CONV_AND_SSM, ATTENTION])
    policies = [
        recurrent_policy("ssm_state", layout, "float16"),
        recurrent_policy("ssm_state", layout, "bfloat16"),
        recurrent_policy("gdn_state", layout, "bfloat16"),
    ]

    assert len(set(map(str, policies))) == len(policies)


@pytest.mark.parametrize(
    "specs",
    [[ATTENTION], [CONV_AND_SSM, RecurrentState([StateTensor("conv", (2, 64))])]],
    ids=["none", "two"],
)
def test_a_sidecar_holds_one_kind_of_state(specs: list[Any]) -> None:
    """SD-2: a layout without recurrent layers, or with two kinds, has no such policy."""
    with pytest.raises(ValueError, match="one kind of state"):
        recurrent_policy("gdn_state", layer_routes(specs), "float32")


def test_a_dtype_that_no_sidecar_holds_is_refused() -> None:
    """SD-2: what could not be written back exactly is not declared."""
    with pytest.raises(ValueError, match="dtype"):
        recurrent_policy("gdn_state", layer_routes([CONV_AND_SSM]), "int8")


# -- windows -----------------------------------------------------------------------------

SLIDING = SlidingWindow(WINDOW, 4, 8, 6)
GEMMA4_GRID = anchor_grid(1, 4)
SLIDING_LAYOUT = layer_routes([SLIDING, SLIDING, ATTENTION, SLIDING, Alias(2), Alias(3)])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_sliding_familys_sidecar_follows_its_layout(dtype: str) -> None:
    """SD-3: keys and values of each layer that owns a window; an alias has none of its own."""
    policy = window_policy(SLIDING_LAYOUT, dtype, anchors=GEMMA4_GRID)
    tensors = [
        SidecarTensor("keys", (1, 4, WINDOW, 8), dtype),
        SidecarTensor("values", (1, 4, WINDOW, 6), dtype),
    ]

    assert policy == SidecarPolicy(
        "sliding_window", SidecarLayout(3, tensors), scaled_axis=2, anchors=GEMMA4_GRID
    )


@given(st.integers(1, WINDOW - 1), st.integers(WINDOW, 10 * WINDOW))
def test_a_windows_rows_follow_the_boundary(below: int, beyond: int) -> None:
    """SD-2: `min(boundary, window)` rows, as the window holds there; nothing else changes."""
    policy = window_policy(SLIDING_LAYOUT, "bfloat16", anchors=())
    assert policy is not None
    keys, values = policy.expected_at(below).tensors

    assert (keys.dims, values.dims) == ((1, 4, below, 8), (1, 4, below, 6))
    assert policy.expected_at(below).num_bytes == 3 * below * SLIDING.token_elements() * 2
    assert policy.expected_at(beyond) == policy.layout
    assert keys.dims[2] == SLIDING.rows_at(below)


def test_without_a_window_there_is_no_policy() -> None:
    """SD-2: blocks of full attention hold all that a prefix leaves behind."""
    assert window_policy(layer_routes([ATTENTION]), "bfloat16", anchors=GEMMA4_GRID) is None


@pytest.mark.parametrize(
    "other",
    [
        SlidingWindow(WINDOW // 2, 4, 8, 6),
        SlidingWindow(WINDOW, 2, 8, 6),
        SlidingWindow(WINDOW, 4, 16, 6),
        SlidingWindow(WINDOW, 4, 8, 8),
    ],
    ids=repr,
)
def test_a_sidecar_holds_one_kind_of_window(other: SlidingWindow) -> None:
    """SD-2: layers whose windows differ in length, heads or widths have no common policy."""
    with pytest.raises(ValueError, match="one kind of window"):
        window_policy(layer_routes([SLIDING, ATTENTION, other]), "float32", anchors=())


@pytest.mark.parametrize(
    ("first", "count", "blocks"),
    [(1, 4, (4, 16, 64, 256)), (0, 5, (1, 4, 16, 64, 256)), (0, 0, ()), (2, 1, (16,))],
)
def test_anchors_are_powers_of_four_from_the_first_block_on(
    first: int, count: int, blocks: tuple[int, ...]
) -> None:
    """SD-5: `4 ** k` blocks, pinned at zero, so that all prompts share them."""
    assert anchor_grid(first, count) == blocks


def test_the_grids_of_the_two_families_in_tokens() -> None:
    """SD-5: at a block size of 16, 64 to 4096 tokens, and 16 to 4096."""
    assert [16 * anchor for anchor in anchor_grid(1, 4)] == [64, 256, 1024, 4096]
    assert [16 * anchor for anchor in anchor_grid(0, 5)] == [16, 64, 256, 1024, 4096]


def test_an_anchor_is_a_boundary() -> None:
    """SD-5: there is nothing to keep before the first block."""
    with pytest.raises(ValueError, match="anchors"):
        window_policy(SLIDING_LAYOUT, "float32", anchors=(0, 4))
