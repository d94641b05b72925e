"""From a path or a hub id to a running model."""

from .cache_plan import CachePlan
from .doors import examine, load, load_for_gate
from .examination import Examined
from .model_plan import ModelPlan
from .plan import LoadPlan

__all__ = [
    "CachePlan",
    "Examined",
    "LoadPlan",
    "ModelPlan",
    "examine",
    "load",
    "load_for_gate",
]
