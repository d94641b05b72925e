"""The gated delta rule, exported for families."""

from ..metal.recurrent.delta_rule import CHUNK, unit_lower_inverse
from ..metal.recurrent.gated_delta import Columns, gated_delta, gated_delta_mixed

__all__ = ["CHUNK", "Columns", "gated_delta", "gated_delta_mixed", "unit_lower_inverse"]
