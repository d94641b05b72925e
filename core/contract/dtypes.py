"""Names of dtypes in specs, as MLX spells them."""

from __future__ import annotations

from collections.abc import Mapping

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Dtypes that a state or a plane of a page may insist on -> bytes of an element."""
