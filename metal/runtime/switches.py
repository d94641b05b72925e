"""Environment variables that switch a mechanism on or off for the whole process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, TypeAlias

Value: TypeAlias = Literal["on", "off"]

KERNELS = "NEVE_KERNELS"
FUSE = "NEVE_FUSE"

_VALUES: Mapping[str, Value] = {"on": "on", "off": "off"}


def value_of(variable: str, environ: Mapping[str, str] = os.environ) -> Value | None:
    """Return the value of a switch.

    Args:
        variable: `KERNELS` or `FUSE`.
        environ: The environment.

    Returns:
        `on` or `off`, in any case of letters; None if the variable is unset, empty or unknown.
        `faults` reports an unknown value: reading happens inside a step, where nothing raises.
    """
    return _VALUES.get(environ.get(variable, "").strip().lower())


def faults(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return a sentence for each switch whose value is unknown."""
    return [
        f"{variable}: must be on or off, got {text!r}"
        for variable in (KERNELS, FUSE)
        if (text := environ.get(variable, "")).strip() and value_of(variable, environ) is None
    ]
