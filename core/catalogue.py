"""Families: found through entry points, validated one by one, asked through one caller each.

A broken plugin stops nobody else: whatever goes wrong becomes a `PluginError` that stands
in the catalogue beside the families that work.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import attrs
import pluggy

from .arguments import items
from .contract.family import Family as Family
from .contract.guard import guarded
from .contract.hooks import HOOK_NAMES, OPTIONAL_HOOKS, PROJECT, FamilyHooks
from .contract.plan import HOOKSPEC_VERSION, FamilyInfo
from .contract.versions import changes_since
from .errors import (
    FamilyNotInstalledError,
    HookMissingError,
    HookVersionError,
    PluginConflictError,
    PluginError,
)
from .log import configure_if_unset, get_logger

ENTRY_POINT_GROUP = "neve.families"
PLUGINS_VARIABLE = "NEVE_PLUGINS"
"""Comma-separated entry points to load; set but empty loads none; unset loads all."""

DEVELOPED_VARIABLE = "NEVE_DEVELOPED_PLUGINS"
"""Comma-separated entry points whose source is being edited; see `_of_source`."""


@attrs.frozen
class Catalogue:
    """What discovery found.

    Attributes:
        families: Families that work, by name.
        refused: One error for each plugin that does not.
    """

    families: Mapping[str, Family]
    refused: tuple[PluginError, ...]

    def for_model_type(self, model_type: str) -> Family:
        """Return the family that answers for `model_type`.

        Raises:
            PluginError: The plugin that would answer was refused, or two of them claim it.
            FamilyNotInstalledError: Nobody answers for it.
        """
        for family in self.families.values():
            if model_type in family.info.model_types:
                return family
        for error in self.refused:
            if model_type in error.model_types or error.plugin == model_type:
                raise error
        distribution = f"neve-{model_type.replace('_', '-')}"
        raise FamilyNotInstalledError(model_type, distribution, sorted(self.families))


def _names_in(variable: str) -> set[str] | None:
    """Return the entry points that a variable names, None if the variable is not set."""
    names = os.environ.get(variable)
    return None if names is None else {name.strip() for name in names.split(",")}


def _wanted(point: EntryPoint) -> bool:
    names = _names_in(PLUGINS_VARIABLE)
    return names is None or point.name in names


def _of_source(name: str, module: object, info: FamilyInfo) -> FamilyInfo:
    """Return the info with a state version that changes with each edit of the plugin's source.

    An editable install keeps its version while its code changes, so prefixes that older code
    wrote would be restored. The digest covers all modules of the plugin's package.

    Raises:
        PluginError: The plugin is no module of a package in files.
    """
    source = getattr(module, "__file__", None)
    if source is None:
        raise PluginError(
            name, f"{DEVELOPED_VARIABLE} needs a plugin in files", info.model_types
        )
    folder, digest = Path(source).parent, hashlib.sha256(str(info.state_version).encode())
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    # few enough bytes to be exact in JSON
    version = int.from_bytes(digest.digest()[:6])
    get_logger("families").warning("families.plugin.developed", plugin=name, state=version)
    return attrs.evolve(info, state_version=version)


@contextmanager
def _refusing(plugin: str, doing: str) -> Generator[None]:
    """Turn whatever a stranger's code raises into a `PluginError`."""
    try:
        yield
    except Exception as error:
        reason = f"{doing} raised {type(error).__name__}: {error}"
        raise PluginError(plugin, reason) from error


def _import(point: EntryPoint) -> object:
    with _refusing(point.name, f"importing {point.value}"):
        return point.load()


def _register(name: str, module: object) -> pluggy.PluginManager:
    """Return a manager that holds this plugin alone, so that its hooks run for it only."""
    manager = pluggy.PluginManager(PROJECT)
    with _refusing(name, "looking for its hooks"):
        manager.register(module, name)
    return manager


def _ask_info(name: str, manager: pluggy.PluginManager) -> FamilyInfo:
    """Ask before the hooks are checked: another version may have others."""
    if not hasattr(manager.hook, "family_info"):
        raise HookMissingError(name, "mandatory hooks are missing: family_info")
    with _refusing(name, "family_info"):
        answers = manager.hook.family_info()
    if len(answers) != 1 or not isinstance(answers[0], FamilyInfo):
        raise PluginError(name, f"family_info must return a FamilyInfo, got {answers}")
    return answers[0]


def _check_version(name: str, manager: pluggy.PluginManager, info: FamilyInfo) -> None:
    if info.hookspec_version == HOOKSPEC_VERSION:
        return
    offered = {hook for hook in HOOK_NAMES if hasattr(manager.hook, hook)}
    changes = changes_since(info.hookspec_version, offered)
    todo = f"install matching versions of neve and {info.distribution}"
    if changes is not None:
        parts = [f"{hook}: {change}" for hook, change in changes.items()]
        todo = f"{todo}, or change in the plugin: {'. '.join(parts)}"
    raise HookVersionError(
        name,
        f"it was written for hook specification {info.hookspec_version}, this neve has "
        f"{HOOKSPEC_VERSION}: {todo}",
        info.model_types,
        changes,
    )


def _check_hooks(
    name: str, manager: pluggy.PluginManager, info: FamilyInfo
) -> Mapping[str, Callable[..., Any]]:
    """Return the hooks that the plugin has."""
    try:
        manager.add_hookspecs(FamilyHooks)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        sentence = " ".join(str(error).split())
        raise HookMissingError(name, sentence, info.model_types) from error
    callers = {hook: getattr(manager.hook, hook) for hook in HOOK_NAMES}
    offered = {hook: caller for hook, caller in callers.items() if caller.get_hookimpls()}
    missing = sorted(HOOK_NAMES - OPTIONAL_HOOKS - offered.keys())
    if missing:
        reason = f"mandatory hooks are missing: {', '.join(missing)}"
        raise HookMissingError(name, reason, info.model_types)
    return offered


def load_family(name: str, module: object, version: str = "unknown") -> Family:
    """Validate one plugin and return its family.

    Args:
        name: The entry point's name, for messages.
        module: The plugin: a module or object with hook implementations.
        version: The distribution's version.

    Raises:
        PluginError: Or one of its kinds; the sentence says what is wrong.
    """
    manager = _register(name, module)
    info = _ask_info(name, manager)
    _check_version(name, manager, info)
    hooks = _check_hooks(name, manager, info)
    asked = {hook: guarded(info.name, hook, call) for hook, call in hooks.items()}
    if name in (_names_in(DEVELOPED_VARIABLE) or ()):
        info = _of_source(name, module, info)
    return Family(info, version, asked)


def _claims(family: Family) -> list[str]:
    """Return what no two families may share."""
    types = dict.fromkeys(family.info.model_types)
    return [f"name {family.name!r}", *(f"model type {t!r}" for t in types)]


def _without_conflicts(
    found: Sequence[tuple[str, Family]],
) -> tuple[dict[str, Family], list[PluginError]]:
    """Drop every family whose name or model type another one claims as well."""
    claimants: dict[str, list[tuple[str, Family]]] = {}
    for plugin, family in found:
        for claim in _claims(family):
            claimants.setdefault(claim, []).append((plugin, family))
    kept: dict[str, Family] = {}
    refused: list[PluginError] = []
    for plugin, family in found:
        disputed = [claim for claim in _claims(family) if len(claimants[claim]) > 1]
        if not disputed:
            kept[family.name] = family
            continue
        rivals = dict.fromkeys(
            f"{rival!r} of {other.info.distribution}"
            for claim in disputed
            for rival, other in claimants[claim]
            if other is not family
        )
        reason = f"{', '.join(disputed)} is claimed by {', '.join(rivals)} too"
        refused.append(PluginConflictError(plugin, reason, family.info.model_types))
    return kept, refused


def discover(points: Iterable[EntryPoint] | None = None) -> Catalogue:
    """Load every installed plugin; what is broken is listed as refused instead of raised.

    Args:
        points: Entry points to look at; None means those of the environment.

    Raises:
        RequestError: The points are something else.
    """
    if points is None:
        points = entry_points(group=ENTRY_POINT_GROUP)
    else:
        points = items("points", points, EntryPoint, "entry points")
    found: list[tuple[str, Family]] = []
    refused: list[PluginError] = []
    for point in points:
        if not _wanted(point):
            continue
        version = point.dist.version if point.dist is not None else "unknown"
        try:
            found.append((point.name, load_family(point.name, _import(point), version)))
        except PluginError as error:
            refused.append(error)
    kept, conflicts = _without_conflicts(found)
    refused += conflicts
    configure_if_unset()
    for error in refused:
        get_logger("families").warning(
            "families.plugin.refused", plugin=error.plugin, reason=error.reason
        )
    return Catalogue(kept, tuple(refused))
