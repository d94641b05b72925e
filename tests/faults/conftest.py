"""The faults run against the real store, in processes of their own where it takes one."""

from __future__ import annotations

import sys
from pathlib import Path

# tests and the programs that they start build their objects with one module
sys.path.append(str(Path(__file__).parent))
