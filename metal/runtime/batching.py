"""How much work MLX submits to a GPU at once.

MLX submits encoded work after a number of operations, or after a number of bytes of inputs. A
pool counts with all its bytes, even if an operation reads one page. With a pool of some
gigabytes, MLX would submit each operation on pages alone.
"""

from __future__ import annotations

import os

_LIMITS = {"MLX_MAX_MB_PER_BUFFER": "1000000", "MLX_MAX_OPS_PER_BUFFER": "50"}


def widen() -> None:
    """Let MLX submit work by the number of operations.

    MLX reads the variables at its first use of a GPU. Variables that are set already stay.
    """
    for name, value in _LIMITS.items():
        os.environ.setdefault(name, value)
