"""The gates on a user's checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GATE = Path(__file__).parent / "test_paged_equals_flat.py"


@pytest.mark.parametrize(
    ("path", "returncode", "sentence"),
    [
        (None, 0, "1 skipped"),
        ("  ", 0, "1 skipped"),
        ("/no/such/folder", 1, "must be a checkpoint folder, got /no/such/folder"),
        (__file__, 1, "must be a checkpoint folder"),
    ],
    ids=["unset", "blank", "missing", "file"],
)
def test_wrong_path_fails_and_no_path_skips(path: str | None, returncode: int, sentence: str):
    """TG-5: a gate that was asked for never passes by being skipped."""
    environment = {k: v for k, v in os.environ.items() if k != "MLX_TEST_MODEL_PATH"}
    if path is not None:
        environment["MLX_TEST_MODEL_PATH"] = path
    done = subprocess.run(
        [sys.executable, "-m", "pytest", GATE, "-k", "user", "-p", "no:cacheprovider"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert sentence in done.stdout
    assert done.returncode == returncode
