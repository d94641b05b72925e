from __future__ import annotations

import attrs
import pytest

from neve.contract.forward import RopeSpec, Segment


def test_rotary_specs_of_equal_content_are_one_key() -> None:
    """FW-2: specs are values, so a step makes one table for all layers that share one."""
    one, other = (RopeSpec(8, 1e4, inv_freq=(1.0, 0.5, 0.25, 0.125)) for _ in range(2))

    assert len({one, other}) == 1
    assert one != attrs.evolve(other, scale=2.0)


def test_segments_are_values() -> None:
    """FW-2: what a step hands to a family cannot be changed by it."""
    segment = Segment(start=0, length=1, position=7)

    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        segment.length = 2  # type: ignore[misc]  # that it is refused is the point
