"""The hook specification itself, and the installed Qwen3 plugin held against it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from neve.catalogue import load_family
from neve.contract.cache_spec import CacheLayout
from neve.contract.errors import ConfigError
from neve.contract.hooks import HOOK_NAMES, OPTIONAL_HOOKS, PROJECT, FamilyHooks
from neve.contract.plan import ColdEligibility, ModelShape, OutputProtocol

SPECS: dict[str, Callable[..., Any]] = {
    name: getattr(FamilyHooks, name) for name in sorted(HOOK_NAMES)
}


def parts_of(spec: Callable[..., Any]) -> list[str]:
    """Return summary, when, shapes, errors and suite of a docstring, each as one line."""
    lines = inspect.cleandoc(spec.__doc__ or "").splitlines()
    raises = next(i for i, x in enumerate(lines) if x.startswith(("Raises", "Must not raise")))
    asked = next(i for i, x in enumerate(lines) if x.startswith("Asked"))
    when_end = next(i for i, x in enumerate(lines) if i >= asked and x.endswith((".", ";")))
    assert lines[1] == ""
    assert asked == 2
    return [
        lines[0],
        " ".join(lines[asked : when_end + 1]),
        " ".join(lines[when_end + 1 : raises]),
        " ".join(lines[raises:-1]),
        lines[-1],
    ]


def test_the_hooks_are_those_that_the_design_names() -> None:
    """FW-2: a checkpoint is identified, parsed, laid out, built, run and described."""
    assert set(SPECS) == {
        "build_model",
        "build_sidecar_policy",
        "cold_restore_eligibility",
        "declare_cache_groups",
        "execution_plan",
        "family_info",
        "forward",
        "model_shape",
        "output_protocol",
        "parse_config",
    }
    assert OPTIONAL_HOOKS < HOOK_NAMES


@pytest.mark.parametrize("name", SPECS)
def test_a_hook_says_five_things_about_itself(name: str) -> None:
    """FW-2: what is asked; when and on which thread; shapes; errors; its suite clause."""
    summary, when, shapes, errors, suite = parts_of(SPECS[name])

    assert summary.endswith(".")
    assert "thread" in when
    assert shapes
    assert errors.endswith(".")
    assert suite.startswith("Suite: `test_")


@pytest.mark.parametrize("name", SPECS)
def test_a_hook_has_one_answer_and_typed_arguments(name: str) -> None:
    """FW-2: every hook is `firstresult`, and its arguments and answer have types."""
    signature = inspect.signature(SPECS[name])
    arguments = list(signature.parameters.values())[1:]

    assert getattr(SPECS[name], f"{PROJECT}_spec")["firstresult"] is True
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(a.annotation is not inspect.Parameter.empty for a in arguments)


@pytest.fixture(scope="module")
def qwen3() -> ModuleType:
    return import_module("neve_qwen3.plugin")


def implementations(plugin: ModuleType) -> dict[str, Callable[..., Any]]:
    return {n: f for n, f in vars(plugin).items() if hasattr(f, f"{PROJECT}_impl")}


def test_the_qwen3_plugin_answers_every_mandatory_hook(qwen3: ModuleType) -> None:
    """FW-2: the plugin offers all mandatory hooks and none that is not asked for."""
    offered = set(implementations(qwen3))

    assert HOOK_NAMES - OPTIONAL_HOOKS <= offered <= HOOK_NAMES


def test_the_qwen3_plugin_takes_the_specified_arguments(qwen3: ModuleType) -> None:
    """FW-2: each of its hooks has exactly the arguments of its specification."""
    for name, function in implementations(qwen3).items():
        expected = list(inspect.signature(SPECS[name]).parameters)[1:]

        assert list(inspect.signature(function).parameters) == expected


def test_the_qwen3_plugin_answers_in_the_specified_types(qwen3: ModuleType) -> None:
    """FW-2: for a real config each hook before the model returns what it promises."""
    path = Path(__file__).parents[2] / "checkpoints" / "qwen3" / "config.json"
    raw = json.loads(path.read_text(encoding="utf-8"))

    family = load_family("qwen3", qwen3)
    config = qwen3.parse_config(raw)
    shape = family.model_shape(config)
    layout = qwen3.declare_cache_groups(config)

    assert shape == ModelShape(
        raw["vocab_size"], raw["max_position_embeddings"], raw["num_hidden_layers"]
    )
    assert isinstance(layout, CacheLayout)
    assert layout.num_layers == shape.num_layers
    assert isinstance(qwen3.output_protocol(config), OutputProtocol)
    assert isinstance(family.cold_restore_eligibility(None), ColdEligibility)
    assert family.cold_restore_eligibility(config).eligible


def test_the_qwen3_plugin_names_a_missing_key(qwen3: ModuleType) -> None:
    """FW-2: `parse_config` raises a `ConfigError` with the key's path."""
    with pytest.raises(ConfigError) as caught:
        qwen3.parse_config({"model_type": "qwen3"})

    assert caught.value.key == "hidden_size"
