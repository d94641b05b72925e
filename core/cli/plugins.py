"""The installed family plugins, as rows of a table."""

from __future__ import annotations

import logging

import attrs

from ..catalogue import Family, discover
from ..errors import NeveError, PluginError
from ..log import configure


@attrs.frozen
class PluginRow:
    """One family plugin.

    Attributes:
        name: The family's name, or the entry point's if the plugin is broken.
        version: Version of the distribution.
        distribution: The distribution that brings it.
        model_types: Values of `model_type` that it answers for.
        cold_restore: Whether prefixes may come back from disk, and why.
        fault: Why it cannot be used; None if it can.
    """

    name: str
    version: str | None = None
    distribution: str | None = None
    model_types: tuple[str, ...] = ()
    cold_restore: str | None = None
    fault: str | None = None


def plugin_rows() -> list[PluginRow]:
    """Return the plugins that work, then those that are broken."""
    configure(logging.ERROR)  # what discovery warns of stands in the rows
    catalogue = discover()
    rows = [_row(family) for _, family in sorted(catalogue.families.items())]
    rows += [
        PluginRow(error.plugin, model_types=error.model_types, fault=error.reason)
        for error in catalogue.refused
    ]
    return sorted(rows, key=lambda row: row.fault is not None)


def _row(family: Family) -> PluginRow:
    info = family.info
    row = PluginRow(family.name, family.version, info.distribution, info.model_types)
    try:
        cold = family.cold_restore_eligibility()
    except PluginError as error:
        return attrs.evolve(row, fault=error.reason)
    except NeveError as error:
        return attrs.evolve(row, fault=str(error))
    answer = "yes" if cold.eligible else "no"
    return attrs.evolve(row, cold_restore=f"{answer}: {cold.reason}")
