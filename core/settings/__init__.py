"""All settings: frozen values, and how keywords, config.json and the environment set them."""

from .resolution import (
    CONFIG_KEYS,
    ENVIRONMENT,
    FIELD_ROOMS,
    IGNORED_CONFIG_KEYS,
    ROOMS,
    EnvironmentVariable,
    Resolved,
    resolve,
)
from .rooms import (
    DTYPES,
    MAX_NUM_SEQS_LIMIT,
    CacheSettings,
    ColdSettings,
    ModelSettings,
    SchedulerSettings,
    Settings,
    TelemetrySettings,
)

__all__ = [
    "CONFIG_KEYS",
    "DTYPES",
    "ENVIRONMENT",
    "FIELD_ROOMS",
    "IGNORED_CONFIG_KEYS",
    "MAX_NUM_SEQS_LIMIT",
    "ROOMS",
    "CacheSettings",
    "ColdSettings",
    "EnvironmentVariable",
    "ModelSettings",
    "Resolved",
    "SchedulerSettings",
    "Settings",
    "TelemetrySettings",
    "resolve",
]
