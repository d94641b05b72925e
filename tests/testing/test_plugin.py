"""The pytest plugin is light: every pytest run of an environment with neve imports it."""

from __future__ import annotations

import subprocess
import sys


def test_plugin_imports_no_mlx():
    """FW-6: whoever tests something else pays nothing for neve."""
    code = "import sys, neve.testing.plugin; print([m for m in sys.modules if 'mlx' in m])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"
