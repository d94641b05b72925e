from __future__ import annotations

import pytest

from neve.metal.runtime.switches import FUSE, KERNELS, faults, value_of

VARIABLES = [KERNELS, FUSE]


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize(
    ("text", "value"),
    [("on", "on"), ("off", "off"), (" OFF ", "off"), ("", None), (" ", None), ("0", None)],
)
def test_values_of_a_switch(variable: str, text: str, value: str | None) -> None:
    """UX-2: on and off, in any case of letters; nothing else switches anything."""
    assert value_of(variable, {variable: text}) == value
    assert value_of(variable, {}) is None


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("text", ["0", "offf", "true", "metal"])
def test_an_unknown_value_is_named(variable: str, text: str) -> None:
    """UX-2: the sentence has the variable, the allowed values and the given one."""
    assert faults({variable: text}) == [f"{variable}: must be on or off, got {text!r}"]


def test_known_values_are_no_faults() -> None:
    """UX-2: unset, empty, on and off are fine, and each variable is looked at."""
    assert faults({}) == []
    assert faults({KERNELS: "off", FUSE: " "}) == []
    assert len(faults({KERNELS: "x", FUSE: "y"})) == 2
