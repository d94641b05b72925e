"""How much work MLX hands to a GPU at once.

MLX commits what it has encoded after so many operations, or when the operations' inputs add up
to so many bytes. The pages of a layer are an input as a whole, however little of them is read:
with a pool of some gigabytes each operation on pages would be committed on its own.
"""

from __future__ import annotations

import os

_LIMITS = {"MLX_MAX_MB_PER_BUFFER": "1000000", "MLX_MAX_OPS_PER_BUFFER": "50"}


def widen() -> None:
    """Let MLX commit by the number of operations, if it has not used a GPU before.

    What the environment says already stays.
    """
    for name, value in _LIMITS.items():
        os.environ.setdefault(name, value)
