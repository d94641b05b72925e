"""Mamba-2, exported for families."""

from ..metal.recurrent.mamba2 import Rates, mamba2, mamba2_mixed, time_step

__all__ = ["Rates", "mamba2", "mamba2_mixed", "time_step"]
