"""Installed plugins as rows."""

from __future__ import annotations

import attrs
import pytest

from neve.catalogue import Catalogue, discover
from neve.cli import plugins
from neve.cli.plugins import plugin_rows
from neve.contract.guard import guarded
from neve.errors import ConfigError, HookMissingError


def test_rows_say_what_a_family_is():
    """FW-3: a family's row has its distribution, model types and cold restore with a reason."""
    row = next(row for row in plugin_rows() if row.name == "qwen3")

    assert (row.distribution, row.model_types, row.fault) == ("neve-qwen3", ("qwen3",), None)
    assert row.cold_restore is not None
    assert row.cold_restore.startswith("yes: ")


def test_broken_plugins_come_last(monkeypatch):
    """FW-3: a plugin that is refused stands beside those that work, with its reason."""
    refused = (HookMissingError("aaa", "mandatory hooks are missing: forward", ["aaa_moe"]),)
    families = discover().families
    monkeypatch.setattr(plugins, "discover", lambda: Catalogue(families, refused))
    *_, last = plugin_rows()

    assert (last.name, last.model_types) == ("aaa", ("aaa_moe",))
    assert last.fault == "mandatory hooks are missing: forward"


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (RuntimeError("no gate"), "its hook cold_restore_eligibility raised RuntimeError: no"),
        (ConfigError("a.b", "is missing"), "config.json: a.b: is missing"),
    ],
)
def test_plugin_that_raises_when_asked(monkeypatch, error, fault):
    """FW-3: a plugin whose answer raises is broken; the others keep their rows."""

    def fail(config):
        raise error

    families = dict(discover().families)
    name = "cold_restore_eligibility"
    hooks = {**families["qwen3"]._ask, name: guarded("qwen3", name, fail)}
    families["qwen3"] = attrs.evolve(families["qwen3"], ask=hooks)
    monkeypatch.setattr(plugins, "discover", lambda: Catalogue(families, ()))
    rows = {row.name: row.fault for row in plugin_rows()}

    found = rows.pop("qwen3")
    assert found is not None
    assert found.startswith(fault)
    assert set(rows.values()) <= {None}
