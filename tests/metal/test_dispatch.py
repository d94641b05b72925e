from __future__ import annotations

from neve.metal import dispatch


def test_dispatches_are_counted_by_operation_and_variant() -> None:
    """Which variant of an operation ran is visible, and reading it changes nothing."""
    before = dispatch.counts().get("test_op:slow", 0)
    dispatch.record("test_op", "slow")
    dispatch.record("test_op", "slow")
    dispatch.counts()["test_op:slow"] = -1

    assert dispatch.counts()["test_op:slow"] == before + 2
