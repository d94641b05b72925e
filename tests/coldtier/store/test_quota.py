from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from neve.coldtier.store.quota import GIB, Bounds, Ledger, StoreLimits


@pytest.fixture
def usage(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "usage", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize(
    ("total_gib", "quota_gib", "min_free_gib"),
    [(40, 4, 5), (500, 50, 25), (4000, 100, 200)],
)
def test_defaults(total_gib: int, quota_gib: int, min_free_gib: int) -> None:
    """CT-7: a tenth of the file system, at most 100 GiB; a twentieth stays free, at least 5."""
    bounds = StoreLimits().on(total_gib * GIB)

    assert bounds == Bounds(quota_gib * GIB, min_free_gib * GIB, None)


def test_limits_that_are_given_hold() -> None:
    """CT-7, CT-10: zero is a limit as well."""
    assert StoreLimits(0, 0, 0).on(GIB) == Bounds(0, 0, 0)


def test_two_ledgers_share_one_count(usage: int, clock) -> None:
    """CT-9: what one process writes or removes, the other one sees."""
    ours, theirs = Ledger(usage, clock), Ledger(usage, clock)
    ours.add(100)
    theirs.add(20)
    ours.remove(50)

    assert (ours.num_bytes, theirs.num_bytes) == (70, 70)
    assert theirs.written_today_bytes == 120, "what is removed stays written"


def test_a_day_begins_at_zero(usage: int, clock) -> None:
    """CT-10: the count of a day ends with it, that of the objects does not."""
    ledger = Ledger(usage, clock)
    ledger.add(100)
    clock.advance(86400)

    assert (ledger.num_bytes, ledger.written_today_bytes) == (100, 0)
    ledger.add(1)
    assert (ledger.num_bytes, ledger.written_today_bytes) == (101, 1)


def test_a_scan_settles_the_count_but_not_the_day(usage: int, clock) -> None:
    """CT-9: opening the store makes its accounts true again."""
    ledger = Ledger(usage, clock)
    ledger.add(100)
    ledger.settle(7)

    assert (ledger.num_bytes, ledger.written_today_bytes) == (7, 100)


def test_a_damaged_file_counts_nothing(usage: int, clock) -> None:
    """CT-9: a record that is cut or foreign is no record."""
    ledger = Ledger(usage, clock)
    for content in (b"", b"neveuse1", b"x" * 32):
        os.ftruncate(usage, 0)
        os.pwrite(usage, content, 0)

        assert (ledger.num_bytes, ledger.written_today_bytes) == (0, 0)


def test_a_count_never_falls_below_zero(usage: int, clock) -> None:
    """CT-9: an account that lost a write is put right by the next scan, not by wrapping."""
    ledger = Ledger(usage, clock)
    ledger.remove(5)

    assert ledger.num_bytes == 0
