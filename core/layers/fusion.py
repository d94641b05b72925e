"""Element-wise operations as one, for families."""

from ..metal.runtime.fusion import fused

__all__ = ["fused"]
