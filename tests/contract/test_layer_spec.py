from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.contract.layer_spec import FullAttention, SlidingWindow

positions = st.integers(0, 10**6)
windows = st.integers(1, 5000)


def test_windows_of_one_kind_and_layout_are_equal_however_they_are_spelt() -> None:
    """GR-1: a value width that is the key width is the same layout as none stated."""
    spec = SlidingWindow(64, 2, 8)

    assert spec == SlidingWindow(window=64, kv_heads=2, head_dim=8, v_head_dim=8)
    assert hash(spec) == hash(SlidingWindow(64, 2, 8, 8))
    assert (spec.value_dim, SlidingWindow(64, 2, 8, 4).value_dim) == (8, 4)


@pytest.mark.parametrize(
    "other",
    [
        SlidingWindow(65, 2, 8),
        SlidingWindow(64, 1, 8),
        SlidingWindow(64, 2, 16),
        SlidingWindow(64, 2, 8, 4),
        FullAttention(2, 8),
    ],
    ids=repr,
)
def test_whatever_differs_makes_another_layout(other: Any) -> None:
    """GR-1: window, heads and widths tell layouts apart, and so does having a window at all."""
    assert SlidingWindow(64, 2, 8) != other


@pytest.mark.parametrize("field", ["window", "kv_heads", "head_dim", "v_head_dim"])
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_of_a_window_are_positive(field: str, value: int) -> None:
    """GR-1: a window without positions, heads or width is refused, by its field."""
    sizes = {"window": 4, "kv_heads": 1, "head_dim": 8, "v_head_dim": 8} | {field: value}

    with pytest.raises(ValueError, match=field):
        SlidingWindow(**sizes)


@given(windows, positions)
def test_a_token_sees_as_many_positions_as_the_window_has(window: int, position: int) -> None:
    """GR-3: the newest `window` positions, its own included, or all where there are fewer."""
    first = SlidingWindow(window, 1, 8).first_visible(position)

    assert first >= 0
    assert position - first + 1 == min(window, position + 1)


@given(positions)
def test_full_attention_sees_everything(position: int) -> None:
    """GR-1: without a window position 0 stays visible."""
    assert FullAttention(1, 8).first_visible(position) == 0


@given(windows, st.integers(1, 10**6))
def test_what_is_kept_of_a_prefix_is_its_end(window: int, boundary: int) -> None:
    """SD-2: `min(boundary, window)` rows, which are all that the next token may still see."""
    spec = SlidingWindow(window, 1, 8)
    rows = spec.rows_at(boundary)

    assert rows == min(boundary, window)
    assert boundary - rows <= spec.first_visible(boundary)


def test_a_token_takes_keys_and_values_of_all_heads() -> None:
    """GR-1: a window's token takes as many elements as one of full attention."""
    assert SlidingWindow(64, 2, 8, 4).token_elements() == 2 * (8 + 4)
    assert FullAttention(2, 8, 4).token_elements() == 2 * (8 + 4)
