"""Rows of a step that one batched launch computes. A pure value, free of MLX."""

from __future__ import annotations

import attrs
from attrs import validators


@attrs.frozen
class Wave:
    """Rows of equal query length.

    Attributes:
        num_rows: Number of rows.
        query_len: Tokens a row: 1 for decode rows, 1 + k for rows that verify k drafts.
    """

    num_rows: int = attrs.field(validator=validators.ge(1))
    query_len: int = attrs.field(validator=validators.ge(1))
