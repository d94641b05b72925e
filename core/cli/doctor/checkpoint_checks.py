"""What `neve doctor CHECKPOINT` says about a checkpoint; no weight is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigError,
    FamilyNotInstalledError,
    NeveError,
    PluginError,
    SettingsError,
    UnsupportedModelError,
)
from ..cache.options import count_text, size_text
from .checks import Finding

if TYPE_CHECKING:
    from ...coldtier.admission.allowlist import PersistDecision
    from ...engine.persistence import Subject
    from ...loading import Examined


def checkpoint_findings(source: str) -> Iterator[Finding]:
    """Yield what would be loaded: the model, its cache groups, and whether it persists.

    Args:
        source: As in `neve.load`; a repository of the hub is downloaded.
    """
    from ...loading import examine

    try:
        examined = examine(source)
        persistence = _persistence(examined)
    except (NeveError, ValueError) as error:  # a layout or policy that breaks a rule
        yield Finding("checkpoint", "broken", str(error), _advice(error))
        return
    yield Finding("checkpoint", "ok", _model(examined.subject))
    yield _tokenizer(examined)
    yield from _groups(examined.subject)
    yield persistence


_ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (CheckpointNotFoundError, "give a folder, a .gguf file or a repository of the hub"),
    (FamilyNotInstalledError, "install the plugin of its family"),
    (PluginError, "upgrade the plugin together with neve, or uninstall it"),
    (SettingsError, "correct the setting in the environment or in config.json"),
    (UnsupportedModelError, "upgrade the plugin of its family, or take another checkpoint"),
    (ConfigError, "download config.json again, or ask whoever made the checkpoint"),
    (CheckpointError, "download the files again: one is missing or damaged"),
)
"""Error class -> advice. The first class that matches counts, so subclasses come first."""


def _advice(error: Exception) -> str:
    advice = (text for kind, text in _ADVICE if isinstance(error, kind))
    return next(advice, "report it to whoever made the plugin of its family")


def _tokenizer(examined: Examined) -> Finding:
    try:
        examined.tokenizer()
    except NeveError as error:
        advice = "download tokenizer.json and tokenizer_config.json as well"
        return Finding("tokenizer", "broken", str(error), advice)
    return Finding("tokenizer", "ok", "its files can be read")


def _persistence(examined: Examined) -> Finding:
    decision, policy = _decision(examined), examined.subject.policy
    answer = "yes" if decision.persist else "no"
    beside = "" if policy is None else f"; a prefix has sidecars of {policy.group}"
    return Finding("persistence", "ok", f"{answer}: {decision.reason}{beside}")


def _model(subject: Subject) -> str:
    family, num_layers = subject.family, subject.layout.num_layers
    return (
        f"{subject.model_type} by {family.name} {family.version}, "
        f"{count_text(num_layers, 'layer')}, cached in {subject.dtype}, "
        f"blocks of {count_text(subject.block_size, 'token')}"
    )


def _groups(subject: Subject) -> Iterator[Finding]:
    """Yield a finding a cache group, then one for all layers that keep something else."""
    from ...contract.cache_spec import Alias, Recurrent
    from ...contract.layer_spec import DTYPE_BYTES
    from ...kvcache.stats import group_kind

    layout, itemsize = subject.layout, DTYPE_BYTES[subject.dtype]
    for group, spec in enumerate(layout.groups):
        layers = count_text(layout.num_group_layers(group), "layer")
        cost = _cost(subject, group, itemsize)
        yield Finding(f"cache group {group}", "ok", f"{group_kind(spec)}, {layers}, {cost}")
    aliases = sum(isinstance(route, Alias) for route in layout.routes)
    if aliases:
        detail = f"{count_text(aliases, 'layer')} that read the keys of others, nothing kept"
        yield Finding("cache aliases", "ok", detail)
    recurrent = sum(isinstance(route, Recurrent) for route in layout.routes)
    if recurrent:
        state = size_text(layout.state_bytes(itemsize))
        detail = f"{count_text(recurrent, 'layer')}, {state} a sequence, whatever its length"
        yield Finding("recurrent states", "ok", detail)


def _cost(subject: Subject, group: int, itemsize: int) -> str:
    """Return what a token or a row takes in a group."""
    from ...kvcache.resident import Resident

    layout, size = subject.layout, subject.block_size
    block_bytes = layout.block_bytes(group, size, itemsize)
    token = f"{size_text(block_bytes // size)} a token"
    resident = Resident.of(layout.groups[group], size, max_slice=1)
    if resident is None:
        return token
    return (
        f"{token}, at most {count_text(resident.most, 'block')} or "
        f"{size_text(resident.most * block_bytes)} a row that decodes"
    )


def _decision(examined: Examined) -> PersistDecision:
    """Return what `load` would decide."""
    from ...engine.persistence import decide_persistence

    subject, settings = examined.subject, examined.settings
    paged = settings.cache.use_block_paged_cache
    if paged is None:
        paged = subject.family.execution_plan(subject.config).paged
    return decide_persistence(subject, settings.cold, paged=paged)
