"""A test run says which tests it has skipped, for want of what, and how to get it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

TESTS = """
import pytest

@pytest.mark.parametrize("n", range(2))
def test_compares(n):
    pytest.skip("could not import 'mlx_lm': No module named 'mlx_lm'")

def test_needs_a_device():
    pytest.skip("MLX has no GPU here: neither Metal nor CUDA")

def test_of_another_platform():
    pytest.skip("ELF is what Linux loads")
"""


def test_skipped_tests_are_grouped_by_what_they_lack(tmp_path: Path) -> None:
    """TG-5: nobody has to guess what a green run has left out."""
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        check=True,
    )

    assert "tests that did not run" in done.stdout
    assert "2 for want of other implementations to compare with: make test-ref" in done.stdout
    assert "1 for want of a GPU: make gpu" in done.stdout
    assert "1 for want of a case that does not apply here" in done.stdout
