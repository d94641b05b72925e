"""Element-wise operations as one, for families."""

from ..metal.fusion import fused

__all__ = ["fused"]
