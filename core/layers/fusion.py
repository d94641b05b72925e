"""Fusion of element-wise operations, exported for families."""

from ..metal.runtime.fusion import fused

__all__ = ["fused"]
