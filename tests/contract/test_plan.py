from __future__ import annotations

import pytest

from neve.contract.plan import ExecutionPlan, FamilyInfo, OutputProtocol


def test_model_types_are_kept_as_a_tuple() -> None:
    """FW-2: a family may list its model types in any sequence."""
    info = FamilyInfo("qwen3", 1, ["qwen3", "qwen3_moe"], "neve-qwen3")

    assert info.model_types == ("qwen3", "qwen3_moe")


def test_a_lone_string_is_no_list_of_model_types() -> None:
    """FW-2: a string is refused, not taken apart into letters."""
    with pytest.raises(TypeError, match="'qwen3'"):
        FamilyInfo("qwen3", 1, "qwen3", "neve-qwen3")


def test_a_family_that_states_nothing_is_paged_and_plain() -> None:
    """FW-2: the defaults ask for nothing special."""
    assert ExecutionPlan() == ExecutionPlan(paged=True, row_exact="never", prefill_chunk=None)
    assert OutputProtocol() == OutputProtocol(end_of_turn=(), reasoning=None, tool_call=None)
