from collections.abc import Callable, Sequence
from typing import Any

import pytest

from neve.sampling.params import SamplingParams
from neve.sampling.row_state import RowState

MakeRow = Callable[..., RowState]


@pytest.fixture(scope="session")
def make_row() -> MakeRow:
    """Build a row with an empty history unless told otherwise."""

    def make(
        vocab_size: int,
        *,
        prompt_tokens: Sequence[int] = (),
        output_tokens: Sequence[int] = (),
        **params: Any,
    ) -> RowState:
        return RowState.create(
            SamplingParams(**params),
            vocab_size=vocab_size,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
        )

    return make
