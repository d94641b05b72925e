"""The arrays that a page consists of."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from neve.contract.layer_spec import FullAttention, SlidingWindow
from neve.contract.page_format import PageFormat, Plane, keys_and_values

KEYS, VALUES = Plane("keys", 2, 8), Plane("values", 2, 6)


def test_attention_keeps_keys_and_values() -> None:
    """GR-1: a window's pages are made of the same planes as those of full attention."""
    expected = PageFormat([KEYS, VALUES])

    assert FullAttention(2, 8, 6).page_format == expected
    assert SlidingWindow(64, 2, 8, 6).page_format == expected
    assert FullAttention(2, 8).page_format == keys_and_values(2, 8, 8)


def test_bytes_are_those_of_the_planes() -> None:
    """KV-7: a plane with a dtype of its own takes the bytes of its own dtype."""
    page = PageFormat([KEYS, VALUES, Plane("scales", 2, 1, "float32")])

    assert KEYS.shape(16) == (2, 16, 8)
    assert page.token_elements == 2 * (8 + 6 + 1)
    assert page.num_bytes(16, itemsize=2) == 16 * 2 * (8 * 2 + 6 * 2 + 1 * 4)
    assert page.num_bytes(16, itemsize=4) == 16 * 2 * (8 + 6 + 1) * 4


@pytest.mark.parametrize(
    ("planes", "plain"),
    [
        ([KEYS, VALUES], (2, 8, 6)),
        ([VALUES, KEYS], None),
        ([KEYS], None),
        ([KEYS, VALUES, Plane("scales", 2, 1)], None),
        ([KEYS, Plane("values", 1, 6)], None),
        ([KEYS, Plane("values", 2, 6, "float16")], None),
        ([Plane("keys", 2, 8, "float16"), VALUES], None),
    ],
)
def test_three_numbers_describe_keys_and_values_alone(planes: Any, plain: Any) -> None:
    """CT-4: every other page needs its planes named in a fingerprint."""
    assert PageFormat(planes).plain == plain


@pytest.mark.parametrize("planes", [[], [KEYS, KEYS], [KEYS, Plane("keys", 1, 8)]])
def test_planes_of_a_page_have_names_of_their_own(planes: Any) -> None:
    """GR-1: a page without planes, or with two of one name, is refused."""
    with pytest.raises(ValueError, match="planes"):
        PageFormat(planes)


@pytest.mark.parametrize(
    "change",
    [{"name": ""}, {"name": "a.b"}, {"heads": 0}, {"dim": 0}, {"dtype": "int7"}],
)
def test_a_plane_is_checked_by_field(change: dict[str, Any]) -> None:
    """GR-1: the error names the field."""
    (field,) = change

    with pytest.raises(ValueError, match=field):
        attrs.evolve(KEYS, **change)
