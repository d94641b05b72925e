from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.coldtier.stats import ColdCacheStats, ColdSidecarStats
from neve.telemetry.turn_log import (
    TurnLog,
    TurnRecord,
    delta,
    delta_fields,
    mean_decode_batch,
)

MakeRecord = Callable[..., TurnRecord]
NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)

COLD_FIELDS = (
    "coldHits",
    "coldMisses",
    "coldEnqueued",
    "coldQueueDrops",
    "coldBytesWritten",
    "coldBytesRestored",
    "coldEvictions",
    "coldCorruptions",
    "coldWriteErrors",
    "coldRestoreDeclines",
)
SIDECAR_FIELDS = (
    "coldSidecarCaptureReached",
    "coldSidecarChainEmpty",
    "coldSidecarBoundarySkips",
    "coldSidecarAlreadyPersisted",
    "coldSidecarEnqueued",
    "coldSidecarQueueDrops",
    "coldSidecarInstalled",
    "coldSidecarRestoreSuppressed",
)
RECORD_FIELDS = (
    "v",
    "ts",
    "turn",
    "model",
    "promptTokens",
    "completionTokens",
    "cachedTokens",
    "restoredTokens",
    "miss",
    "finishReason",
    "queueMs",
    "ttftMs",
    "totalMs",
    "preemptions",
    "decodeBatch",
    "coldEnabled",
)


def path_of(folder: Path, date: str = "2026-03-14") -> Path:
    return folder / f"{date}-{os.getpid()}.jsonl"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def counting_from(cls: type, start: int) -> Any:
    """Return a snapshot whose int fields all differ: start, start + 1, ..."""
    ints = [f.name for f in attrs.fields(cls) if f.type == "int"]
    return cls(**{name: start + i for i, name in enumerate(ints)})


def test_the_counters_names_are_those_of_the_types() -> None:
    """TE-2: whoever takes a counter from a type, or renames one, is told here."""
    assert delta_fields(ColdCacheStats, "cold") == COLD_FIELDS
    assert delta_fields(ColdSidecarStats, "coldSidecar") == SIDECAR_FIELDS


def test_a_narrower_type_has_fewer_fields() -> None:
    """TE-2: the names follow the type, and only its ints count."""

    @attrs.frozen
    class Narrow:
        enabled: bool
        root: str
        quota_bytes: int
        share: float
        hits: int

    assert delta_fields(Narrow, "cold") == ("coldHits",)
    assert delta("cold", Narrow(True, "a", 5, 0.5, 2), Narrow(False, "b", 9, 1.5, 5)) == {
        "coldHits": 3
    }


def test_a_line_is_read_back(tmp_path: Path, make_record: MakeRecord) -> None:
    """TE-2: a line has every field, and of each counter the difference over the turn."""
    log = TurnLog(tmp_path, lambda: NOON)
    cold = (ColdCacheStats(root="a", enabled=True), counting_from(ColdCacheStats, 1))
    sidecar = (counting_from(ColdSidecarStats, 5), counting_from(ColdSidecarStats, 105))
    log.write(make_record(cold_enabled=True), cold=cold, sidecar=sidecar)
    log.close()
    (line,) = lines_of(path_of(tmp_path))

    assert tuple(line) == RECORD_FIELDS + COLD_FIELDS + SIDECAR_FIELDS
    assert {name: line[name] for name in RECORD_FIELDS} == {
        "v": 1,
        "ts": "2026-03-14T12:00:00.000+00:00",
        "turn": 7,
        "model": "tiny",
        "promptTokens": 100,
        "completionTokens": 20,
        "cachedTokens": 64,
        "restoredTokens": 32,
        "miss": None,
        "finishReason": "stop",
        "queueMs": 1.0,
        "ttftMs": 12.5,
        "totalMs": 80.0,
        "preemptions": 0,
        "decodeBatch": None,
        "coldEnabled": True,
    }
    # quota_bytes, the first int, is no counter
    assert [line[name] for name in COLD_FIELDS] == list(range(2, 2 + len(COLD_FIELDS)))
    assert [line[name] for name in SIDECAR_FIELDS] == [100] * len(SIDECAR_FIELDS)


def test_without_counters_there_are_none(tmp_path: Path, make_record: MakeRecord) -> None:
    """TE-2: a field that is missing was not asked for; it is not zero."""
    log = TurnLog(tmp_path, lambda: NOON)
    log.write(make_record())
    log.close()

    assert tuple(lines_of(path_of(tmp_path))[0]) == RECORD_FIELDS


def test_the_page_names_every_field(documented) -> None:
    """TE-2: docs/telemetry.md lists the fields of a line and the counters behind them."""
    rows = documented("A line a turn")
    own = tuple(row[0][0] for row in rows[:-2])

    assert own == RECORD_FIELDS
    assert rows[-2:] == [
        [["ColdCacheStats"], list(COLD_FIELDS)],
        [["ColdSidecarStats"], list(SIDECAR_FIELDS)],
    ]


def test_folder_and_file_are_their_owners_alone(
    tmp_path: Path, make_record: MakeRecord
) -> None:
    """TE-2: the folder is made at the first line, 0700; the file is 0600."""
    folder = tmp_path / "deep" / "turns"
    log = TurnLog(folder, lambda: NOON)

    assert not folder.exists()
    log.write(make_record())
    log.close()

    assert mode_of(folder) == 0o700
    assert mode_of(path_of(folder)) == 0o600


def test_a_new_day_is_a_new_file(tmp_path: Path, make_record: MakeRecord) -> None:
    """TE-2: a file holds the turns that ended on its UTC date, whatever the local one."""
    east = timezone(timedelta(hours=9))
    times = iter(
        [
            NOON,
            datetime(2026, 3, 15, 8, 59, tzinfo=east),
            datetime(2026, 3, 15, 9, 0, tzinfo=east),
        ]
    )
    log = TurnLog(tmp_path, lambda: next(times))
    for turn in range(3):
        log.write(make_record(turn=turn))
    log.close()

    assert [line["turn"] for line in lines_of(path_of(tmp_path))] == [0, 1]
    assert [line["turn"] for line in lines_of(path_of(tmp_path, "2026-03-15"))] == [2]


def test_lines_are_appended(tmp_path: Path, make_record: MakeRecord) -> None:
    """TE-2: two logs of one process share the file and lose nothing of each other's."""
    logs = [TurnLog(tmp_path, lambda: NOON) for _ in range(2)]

    def write_all(log: TurnLog, first: int) -> None:
        for turn in range(first, first + 50):
            log.write(make_record(turn=turn))

    threads = [threading.Thread(target=write_all, args=(logs[i % 2], 50 * i)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for log in logs:
        log.close()

    assert sorted(line["turn"] for line in lines_of(path_of(tmp_path))) == list(range(200))


def test_a_failure_is_logged_once_and_counted(
    tmp_path: Path, make_record: MakeRecord, logged: list[Any]
) -> None:
    """TE-2: a folder that cannot be made costs lines, never a turn."""
    folder = tmp_path / "taken"
    folder.write_text("a file")
    log = TurnLog(folder, lambda: NOON)
    for _ in range(3):
        log.write(make_record())

    assert log.failures == 3
    assert [event["event"] for event in logged] == ["telemetry.turn_log.failed"]
    folder.unlink()
    log.write(make_record(turn=9))
    log.close()

    assert [line["turn"] for line in lines_of(path_of(folder))] == [9]


def test_a_link_is_not_followed(tmp_path: Path, make_record: MakeRecord) -> None:
    """TE-2: whoever may write to the folder cannot send the lines elsewhere."""
    target = tmp_path / "target"
    path_of(tmp_path).symlink_to(target)
    log = TurnLog(tmp_path, lambda: NOON)
    log.write(make_record())
    log.close()

    assert (log.failures, target.exists()) == (1, False)


def test_a_torn_line_does_not_spoil_the_next(
    tmp_path: Path, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TE-2: after a write that a full disk cut short, the next line begins a new one."""
    log, write = TurnLog(tmp_path, lambda: NOON), os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:10]))
        log.write(make_record(turn=1))
    log.write(make_record(turn=2))
    log.close()
    torn, whole = path_of(tmp_path).read_text().splitlines()

    assert log.failures == 1
    assert len(torn) == 10
    assert json.loads(whole)["turn"] == 2


def test_a_line_torn_by_another_process_does_not_spoil_the_next(
    tmp_path: Path, make_record: MakeRecord
) -> None:
    """TE-2: a file may be left by a process of the same id that died in a write."""
    path_of(tmp_path).write_text('{"v":1,"t')
    log = TurnLog(tmp_path, lambda: NOON)
    log.write(make_record(turn=2))
    log.close()

    assert json.loads(path_of(tmp_path).read_text().splitlines()[1])["turn"] == 2


def test_a_closed_log_takes_no_more(tmp_path: Path, make_record: MakeRecord) -> None:
    """TE-2: a line after the end counts as a failure; closing twice is harmless."""
    log = TurnLog(tmp_path / "turns", lambda: NOON)
    log.close()
    log.close()
    log.write(make_record())

    assert log.failures == 1
    assert not (tmp_path / "turns").exists()


@given(model=st.text(st.characters(), max_size=20), ms=st.floats(), miss=st.none() | st.text())
def test_every_record_is_one_line_of_json(tmp_path_factory, make_record, model, ms, miss):
    """TE-2: neither a strange name nor a number that JSON lacks breaks a line."""
    folder = tmp_path_factory.mktemp("turns")
    log = TurnLog(folder, lambda: NOON)
    log.write(make_record(model=model, ttft_ms=ms, miss=miss))
    log.close()
    (line,) = lines_of(path_of(folder))

    assert (line["model"], line["miss"]) == (model, miss)
    assert line["ttftMs"] is None or line["ttftMs"] == round(ms, 3)


def test_the_mean_decode_batch_is_that_of_the_steps_between() -> None:
    """TE-2: steps before the turn and steps without decode rows do not count."""
    before, after = {0: 3, 1: 10, 2: 1}, {0: 9, 1: 10, 2: 3, 5: 2}

    assert mean_decode_batch(before, after) == (2 * 2 + 5 * 2) / 4
    assert mean_decode_batch(after, after) is None
    assert mean_decode_batch({}, {0: 4}) is None
