"""Small files that are replaced as a whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from neve.files import replace_file


def test_a_file_is_private_and_its_folder_is_made(tmp_path: Path) -> None:
    """CT-8: what we write for ourselves nobody else reads."""
    path = tmp_path / "folder" / "file"
    replace_file(path, b"one")
    replace_file(path, b"two")

    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_leaves_what_there_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """CT-7: a disk that fails in between costs the new content, not the old."""
    path = tmp_path / "file"
    replace_file(path, b"one")

    def fail(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(os if call == "fsync" else Path, call, fail)
    with pytest.raises(OSError, match="no"):
        replace_file(path, b"two")

    assert path.read_bytes() == b"one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
