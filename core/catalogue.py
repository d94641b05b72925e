"""Families: found through entry points, validated one by one, asked through one caller each.

A broken plugin stops nobody else: whatever goes wrong becomes a `PluginError` that stands
in the catalogue beside the families that work.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import attrs
import pluggy

from .contract.guard import check_layout, check_logits, guarded
from .contract.hooks import OPTIONAL_HOOKS, PROJECT, FamilyHooks
from .contract.plan import HOOKSPEC_VERSION, ExecutionPlan, FamilyInfo, OutputProtocol
from .errors import (
    FamilyNotInstalledError,
    HookMissingError,
    HookVersionError,
    PluginConflictError,
    PluginError,
)
from .log import configure_if_unset, get_logger

if TYPE_CHECKING:
    import mlx.core as mx
    import mlx.nn as nn

    from .contract.cache_spec import CacheLayout
    from .contract.forward import ForwardContext, StepBatch
    from .contract.plan import ColdEligibility, ModelShape
    from .contract.sidecar import SidecarPolicy
    from .contract.weights import Weights

ENTRY_POINT_GROUP = "neve.families"
PLUGINS_VARIABLE = "NEVE_PLUGINS"
"""Comma-separated entry points to load; set but empty loads none; unset loads all."""

HOOK_NAMES = frozenset(
    name for name, _ in inspect.getmembers(FamilyHooks, inspect.isfunction) if name[0] != "_"
)


@attrs.frozen
class Family:
    """One plugin's answers, behind typed methods; see `contract.hooks` for what they mean.

    Each raises `HookFailedError` for what `contract.guard` does not let pass.
    """

    info: FamilyInfo
    version: str
    _ask: Mapping[str, Callable[..., Any]] = attrs.field(repr=False)

    @property
    def name(self) -> str:
        """The family's name."""
        return self.info.name

    def parse_config(self, raw: Mapping[str, Any]) -> Any:
        """Return the family's frozen config."""
        return self._ask["parse_config"](raw=raw)

    def model_shape(self, config: Any) -> ModelShape:
        """Return vocabulary, context and layer count."""
        return self._ask["model_shape"](config=config)

    def declare_cache_groups(self, config: Any) -> CacheLayout:
        """Return the cache layout, which has one route a layer."""
        layout = self._ask["declare_cache_groups"](config=config)
        return check_layout(self.name, layout, self.model_shape(config))

    def build_model(self, config: Any, weights: Weights) -> nn.Module:
        """Return the model with its weights."""
        return self._ask["build_model"](config=config, weights=weights)

    def forward(self, model: nn.Module, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return logits `[R, V]`."""
        logits = self._ask["forward"](model=model, batch=batch, context=context)
        return check_logits(self.name, logits, batch.logit_rows.shape[0])

    def build_sidecar_policy(self, config: Any, dtype: str) -> SidecarPolicy | None:
        """Return the sidecar policy of a compute dtype, None without one."""
        return self._ask["build_sidecar_policy"](config=config, dtype=dtype)

    def cold_restore_eligibility(self, config: Any | None = None) -> ColdEligibility:
        """Return whether prefixes may come back from disk."""
        return self._ask["cold_restore_eligibility"](config=config)

    def execution_plan(self, config: Any) -> ExecutionPlan:
        """Return the family's plan, the default one if it states none."""
        return self._ask["execution_plan"](config=config) or ExecutionPlan()

    def output_protocol(self, config: Any) -> OutputProtocol:
        """Return the family's output protocol, an empty one if it states none."""
        return self._ask["output_protocol"](config=config) or OutputProtocol()


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


def _wanted(point: EntryPoint) -> bool:
    names = os.environ.get(PLUGINS_VARIABLE)
    return names is None or point.name in {name.strip() for name in names.split(",")}


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


def _check_version(name: str, info: FamilyInfo) -> None:
    if info.hookspec_version != HOOKSPEC_VERSION:
        raise HookVersionError(
            name,
            f"it was written for hook specification {info.hookspec_version}, this neve has "
            f"{HOOKSPEC_VERSION}: install matching versions of neve and {info.distribution}",
            info.model_types,
        )


def _check_hooks(name: str, manager: pluggy.PluginManager, info: FamilyInfo) -> None:
    try:
        manager.add_hookspecs(FamilyHooks)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        sentence = " ".join(str(error).split())
        raise HookMissingError(name, sentence, info.model_types) from error
    offered = {hook for hook in HOOK_NAMES if getattr(manager.hook, hook).get_hookimpls()}
    missing = sorted(HOOK_NAMES - OPTIONAL_HOOKS - offered)
    if missing:
        reason = f"mandatory hooks are missing: {', '.join(missing)}"
        raise HookMissingError(name, reason, info.model_types)


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
    _check_version(name, info)
    _check_hooks(name, manager, info)
    hooks = {hook: getattr(manager.hook, hook) for hook in HOOK_NAMES}
    asked = {hook: guarded(info.name, hook, call) for hook, call in hooks.items()}
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
    """Load every installed plugin; nothing raises, what is broken is listed as refused.

    Args:
        points: Entry points to look at; None means those of the environment.
    """
    points = entry_points(group=ENTRY_POINT_GROUP) if points is None else points
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
