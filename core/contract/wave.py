"""Rows of a step that one batched launch computes. A plain value, without MLX."""

from __future__ import annotations

import attrs
from attrs import validators


@attrs.frozen
class Wave:
    """Rows of equal length.

    Attributes:
        num_rows: How many rows.
        query_len: Tokens a row: 1 where rows decode, 1 + k where they verify k drafts.
    """

    num_rows: int = attrs.field(validator=validators.ge(1))
    query_len: int = attrs.field(validator=validators.ge(1))
