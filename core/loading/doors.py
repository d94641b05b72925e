"""The ways in: load a model, examine a checkpoint, load for the restart-parity gate."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..arguments import flag
from ..checkpoint.resolve import resolve_checkpoint
from ..engine.core import Core
from ..engine.engine import Engine
from ..log import configure_if_unset
from ..model import Model
from ..settings import Settings, resolve
from .builders import build_core
from .examination import Examined, examine_path
from .model_plan import ModelPlan


def load(
    source: str | Path,
    *,
    settings: Settings | None = None,
    progress: bool = True,
    **overrides: Any,
) -> Model:
    """Load a checkpoint and start its engine.

    Args:
        source: A folder, a `.gguf` file, or a hub repository such as `Qwen/Qwen3-0.6B`.
        settings: Settings; keywords override them.
        progress: Show download progress.
        **overrides: Any field of any room of `Settings`, e.g. `max_num_seqs=4`.

    Raises:
        RequestError: The source is no path, or `progress` no bool.
        SettingsError: An unknown or impossible setting.
        CheckpointError: The checkpoint cannot be found, read or understood.
        FamilyNotInstalledError: No installed plugin answers for its model type.
        MemoryBudgetError: It does not fit.
    """
    path = _resolve_path(source, settings, overrides, progress=progress)
    return Model(Engine(partial(_make_core, str(source), path, settings, overrides)))


def examine(
    source: str | Path,
    *,
    settings: Settings | None = None,
    progress: bool = True,
    **overrides: Any,
) -> Examined:
    """Find out what `load` would load, and load nothing.

    Args:
        source: As in `load`.
        settings: As in `load`.
        progress: As in `load`.
        **overrides: As in `load`.

    Raises:
        SettingsError: As `load`.
        CheckpointError: As `load`.
        FamilyNotInstalledError: As `load`.
    """
    path = _resolve_path(source, settings, overrides, progress=progress)
    return examine_path(path, settings, overrides)


def load_for_gate(path: Path, store_dir: Path, **overrides: Any) -> Model:
    """Load a checkpoint whose family may not persist yet, to find out whether it could.

    For the restart-parity gate alone: what it writes lies in a store that is thrown away.

    Args:
        path: What `resolve_checkpoint` returned.
        store_dir: Folder of the store.
        **overrides: As in `load`.

    Raises:
        NeveError: As `load`.
    """
    configure_if_unset()
    settings = {**overrides, "cold_cache_dir": str(store_dir), "persist_paged_cache": True}
    return Model(Engine(partial(_make_core, str(path), path, None, settings, gate=True)))


def _resolve_path(
    source: str | Path,
    given: Settings | None,
    overrides: Mapping[str, Any],
    *,
    progress: bool,
) -> Path:
    configure_if_unset()
    flag("progress", progress)
    # a wrong setting is refused before anything is downloaded
    revision = resolve(given, overrides).settings.model.revision
    return resolve_checkpoint(source, revision=revision, progress=progress)


def _make_core(
    source: str,
    path: Path,
    given: Settings | None,
    overrides: Mapping[str, Any],
    *,
    gate: bool = False,
) -> Core:
    """Load everything; runs on the engine thread."""
    plan = ModelPlan.of(examine_path(path, given, overrides))
    return build_core(source, plan, gate=gate)
