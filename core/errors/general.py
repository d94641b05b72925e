"""The error tree, but for the cold tier.

Every error carries its data in attributes; the sentence says what was wrong and what
would be right. Each also derives from the builtin that a caller would expect.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def shown(value: object) -> str:
    """Return a value as an error shows it: short, whatever the value's own `repr` does."""
    try:
        return str(value) if isinstance(value, BaseException) else _SHORT.repr(value)
    except Exception:  # noqa: BLE001  a caller's object may raise anything
        return f"a {type(value).__name__} that cannot be shown"


class NeveError(Exception):
    """The root of everything that neve raises on purpose."""


class SettingsError(NeveError, ValueError):
    """One or more settings are unknown, mistyped or out of range.

    Attributes:
        findings: One sentence a bad key, each beginning with the key's path.
    """

    def __init__(self, findings: Sequence[str]) -> None:
        self.findings = tuple(findings)
        super().__init__("; ".join(self.findings))


class PluginError(NeveError):
    """A family plugin cannot be used; the others keep working.

    Attributes:
        plugin: The entry point's name.
        reason: Why, in one sentence.
        model_types: The model types that it would have answered for, as far as known.
    """

    def __init__(self, plugin: str, reason: str, model_types: Sequence[str] = ()) -> None:
        self.plugin = plugin
        self.reason = reason
        self.model_types = tuple(model_types)
        super().__init__(f"family plugin {plugin!r}: {reason}")


class PluginConflictError(PluginError):
    """Two plugins answer for one model type; neither is used."""


class HookFailedError(PluginError):
    """A hook of a family raised what it may not raise, or returned what it may not return.

    Attributes:
        hook: The hook's name.
    """

    def __init__(self, family: str, hook: str, reason: str) -> None:
        self.hook = hook
        super().__init__(family, f"its hook {hook} {reason}")


class HookMissingError(PluginError):
    """A plugin lacks a mandatory hook, or offers one that is not asked for."""


class HookVersionError(PluginError):
    """A plugin was written for another version of the hook specification.

    Attributes:
        changes: Hook -> what has to be changed there; empty for a plugin that is newer.
    """

    def __init__(
        self,
        plugin: str,
        reason: str,
        model_types: Sequence[str] = (),
        changes: Mapping[str, str] | None = None,
    ) -> None:
        self.changes = dict(changes or {})
        super().__init__(plugin, reason, model_types)


class FamilyNotInstalledError(NeveError, LookupError):
    """No installed plugin answers for a checkpoint's model type.

    Attributes:
        model_type: What the checkpoint's config.json says.
        distribution: The distribution that would bring the family.
    """

    def __init__(self, model_type: str, distribution: str, installed: Sequence[str]) -> None:
        self.model_type = model_type
        self.distribution = distribution
        known = ", ".join(installed) or "none"
        super().__init__(
            f"no installed family answers for model type {model_type!r}: "
            f"try `pip install {distribution}` (installed: {known})"
        )


class CheckpointError(NeveError):
    """A checkpoint cannot be read."""


class CheckpointNotFoundError(CheckpointError):
    """No folder, file or repository of the hub has the name that was given."""


class UnsupportedModelError(CheckpointError, ValueError):
    """The checkpoint is sound but asks for something that its family does not implement."""


class ConfigError(CheckpointError, ValueError):
    """A value in config.json is missing, mistyped or impossible.

    Attributes:
        key: The key's path, e.g. `text_config.rope_theta`; empty if it is the whole file.
        reason: What is wrong, and what would be right.
    """

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(f"config.json: {key}: {reason}" if key else f"config.json: {reason}")


class WeightError(CheckpointError, ValueError):
    """The weights are not those that the model needs.

    Attributes:
        missing: Parameters that the model needs and the checkpoint lacks.
        unexpected: Tensors that no parameter takes.
        mismatched: Sentences about tensors of the wrong shape or type.
    """

    def __init__(
        self,
        reason: str,
        *,
        missing: Sequence[str] = (),
        unexpected: Sequence[str] = (),
        mismatched: Sequence[str] = (),
    ) -> None:
        self.missing = tuple(missing)
        self.unexpected = tuple(unexpected)
        self.mismatched = tuple(mismatched)
        super().__init__(reason)


class RequestError(NeveError, ValueError):
    """A request cannot be served as it stands.

    Attributes:
        code: A stable word for programs.
        param: The parameter that was wrong, or None.
    """

    def __init__(self, message: str, *, code: str, param: str | None = None) -> None:
        self.code = code
        self.param = param
        super().__init__(message)


class ContextLengthExceededError(RequestError):
    """A prompt does not fit into the model's context or the cache."""

    def __init__(self, num_tokens: int, max_tokens: int, bound: str) -> None:
        self.num_tokens = num_tokens
        self.max_tokens = max_tokens
        super().__init__(
            f"the prompt has {num_tokens} tokens, but {bound} holds {max_tokens}",
            code="context_length_exceeded",
            param="prompt",
        )


class InvalidSamplingError(RequestError):
    """A sampling parameter is out of range or of the wrong type."""

    def __init__(self, param: str, got: object, expected: str) -> None:
        self.got = got
        self.expected = expected
        super().__init__(
            f"{param} must be {expected}, got {shown(got)}",
            code="invalid_sampling",
            param=param,
        )


class NonFiniteLogitsError(NeveError, ArithmeticError):
    """A model's logits were NaN or infinite, so that no token could be taken from them.

    Attributes:
        request: The request's number.
        position: The position in the sequence, from 0, whose logits these were.
    """

    def __init__(self, request: int, position: int) -> None:
        self.request = request
        self.position = position
        super().__init__(
            f"request {request}: logits at position {position} are NaN or infinite: weights or "
            "config are damaged, or the compute dtype is too narrow (try dtype='float32')"
        )


class SaltTooLongError(RequestError):
    """A cache salt exceeds 256 UTF-8 bytes."""

    def __init__(self, num_bytes: int, max_bytes: int) -> None:
        super().__init__(
            f"cache_salt has {num_bytes} UTF-8 bytes, at most {max_bytes} are allowed",
            code="salt_too_long",
            param="cache_salt",
        )


class CacheMisuseError(NeveError, RuntimeError):
    """The cache was used out of order: a fault of the caller, refused before any change.

    Attributes:
        operation: What was tried.
        state: The state in which it is not allowed.
    """

    def __init__(self, operation: str, state: str) -> None:
        self.operation = operation
        self.state = state
        super().__init__(f"cannot {operation}: {state}")


class CacheExhaustedError(NeveError, MemoryError):
    """No block is free, evictable or growable.

    Attributes:
        needed: Blocks that were asked for.
        available: Blocks that could be had.
    """

    def __init__(self, needed: int, available: int) -> None:
        self.needed = needed
        self.available = available
        super().__init__(f"{needed} blocks needed, {available} to be had")


class MemoryBudgetError(NeveError, MemoryError):
    """Weights or pools do not fit into the memory that neve may use."""


class RequestStateError(NeveError, RuntimeError):
    """A turn was moved along an edge that its state machine does not have."""


class EngineClosedError(NeveError, RuntimeError):
    """The model was closed, or its engine thread has ended."""


class RequestCancelledError(NeveError):
    """The turn was cancelled before it finished."""
