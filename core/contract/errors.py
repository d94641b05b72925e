"""The errors that a family's hooks may raise, exported for plugins."""

from ..errors import ConfigError, UnsupportedModelError, WeightError

__all__ = ["ConfigError", "UnsupportedModelError", "WeightError"]
