from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.contract.sidecar import SidecarLayout, SidecarPolicy

WINDOW = 512
LAYOUT = SidecarLayout(num_layers=3, tensors_per_layer=2, dims=(4, WINDOW, 8), itemsize=2)
SCALED = SidecarPolicy("sliding_window", LAYOUT, scaled_axis=1)


@settings(deadline=None)
@given(st.integers(WINDOW, 10 * WINDOW))
def test_at_and_above_the_extent_the_layout_is_the_declared_one(boundary: int) -> None:
    """SD-2: a boundary-scaled layout is the identity at and above its window."""
    assert SCALED.expected_at(boundary) == LAYOUT


@settings(deadline=None)
@given(st.integers(1, WINDOW - 1))
def test_below_the_extent_one_axis_follows_the_boundary(boundary: int) -> None:
    """SD-2: below the window the declared axis is the boundary; all else is frozen."""
    expected = attrs.evolve(LAYOUT, dims=(4, boundary, 8))

    assert SCALED.expected_at(boundary) == expected
    assert expected.tensor_bytes == 4 * boundary * 8 * 2


@settings(deadline=None)
@given(st.integers(1, 10 * WINDOW))
def test_without_a_scaled_axis_nothing_follows_the_boundary(boundary: int) -> None:
    """SD-2: a policy that scales no axis expects one layout everywhere."""
    assert SidecarPolicy("conv_state", LAYOUT).expected_at(boundary) == LAYOUT


@pytest.mark.parametrize("boundary", [0, -16])
def test_a_boundary_is_positive(boundary: int) -> None:
    """SD-2: there is no state at or before the first token."""
    with pytest.raises(ValueError, match="positive number of tokens"):
        SCALED.expected_at(boundary)


@pytest.mark.parametrize("axis", [-1, 3])
def test_the_scaled_axis_exists(axis: int) -> None:
    """SD-2: the declared axis is one of the layout's."""
    with pytest.raises(ValueError, match=f"scaled_axis {axis}"):
        SidecarPolicy("conv_state", LAYOUT, scaled_axis=axis)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_layers", 0),
        ("tensors_per_layer", 0),
        ("itemsize", 0),
        ("dims", ()),
        ("dims", (4, 0)),
    ],
)
def test_a_geometry_is_positive(field: str, value: Any) -> None:
    """SD-2: an empty geometry cannot be declared; the error names the field."""
    with pytest.raises(ValueError, match=field):
        attrs.evolve(LAYOUT, **{field: value})
