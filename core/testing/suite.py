"""The conformance suite: the guarantees of every family, one method a clause.

A plugin's whole test file consists of a fixture and a subclass:

    @pytest.fixture(scope="session")
    def neve_family():
        return "llama", Path(__file__).parent / "checkpoint"


    class TestLlama(FamilySuite):
        pass

Without a test file: `pytest --pyargs neve.testing.suite --family llama --checkpoint PATH`.
A clause that a family cannot keep is overridden with a strict xfail and a reason. Any other
override, and any deletion, fails the clause `test_no_clause_is_missing`.
"""

from __future__ import annotations

import inspect

import pytest

from .computed_clauses import ComputedClauses
from .stated_clauses import StatedClauses
from .tap_clauses import TapClauses


class FamilySuite(StatedClauses, ComputedClauses, TapClauses):
    """The guarantees of every family."""

    pytestmark = pytest.mark.mlx

    @pytest.mark.usefixtures("neve_family")
    def test_no_clause_is_missing(self) -> None:
        """FW-6: only a strict xfail with a reason waives a clause."""
        replaced = [name for name in CLAUSES if _is_replaced(type(self), name)]

        assert replaced == []


CLAUSES = tuple(name for name in dir(FamilySuite) if name.startswith("test_"))


def _is_replaced(suite: type[FamilySuite], name: str) -> bool:
    own, ours = (inspect.getattr_static(cls, name) for cls in (suite, FamilySuite))
    return own is not ours and not _is_waived(own)


def _is_waived(clause: object) -> bool:
    """Return whether a clause has a strict xfail with a reason."""
    marks: list[pytest.Mark] = getattr(clause, "pytestmark", [])
    return any(
        mark.name == "xfail" and mark.kwargs.get("strict") and mark.kwargs.get("reason")
        for mark in marks
    )


class TestFamily(FamilySuite):
    """The family of `--family` and `--checkpoint`."""
