"""The errors that a family's hooks may raise, for families to import."""

from ..errors import ConfigError, UnsupportedModelError, WeightError

__all__ = ["ConfigError", "UnsupportedModelError", "WeightError"]
