"""Write the generated parts of the documentation: `python docs/_generate.py`.

What stands between `<!-- generated: NAME -->` and `<!-- end -->` is made from the docstrings
of the code. `tests/test_docs.py` fails when it is not up to date.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from neve.contract import cache_spec, forward, heads, plan, sidecar
from neve.contract.hooks import OPTIONAL_HOOKS, OptionalHooks, RequiredHooks
from neve.settings import CONFIG_KEYS, ENVIRONMENT, FIELD_ROOMS, ROOMS

DOCS = Path(__file__).parent
PAGES = (
    DOCS / "settings.md",
    DOCS / "plugins" / "hooks.md",
    DOCS / "plugins" / "layers.md",
)

_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_ANSWERS = (
    plan.FamilyInfo,
    plan.ModelShape,
    cache_spec.CacheLayout,
    cache_spec.AttentionSpec,
    cache_spec.FullAttention,
    cache_spec.SlidingWindow,
    cache_spec.RecurrentState,
    cache_spec.StateTensor,
    cache_spec.Owned,
    cache_spec.Alias,
    cache_spec.Recurrent,
    cache_spec.Uncached,
    plan.ExecutionPlan,
    plan.ColdEligibility,
    sidecar.SidecarPolicy,
    sidecar.SidecarLayout,
    sidecar.SidecarTensor,
    plan.OutputProtocol,
    forward.StepBatch,
    forward.Tap,
    forward.ForwardOutput,
    forward.Segment,
    forward.RopeSpec,
    forward.Scoring,
    heads.HeadShape,
    heads.Projected,
)


def _attribute_docs(cls: type) -> dict[str, str]:
    """Return what the `Attributes:` section of a class docstring says of each name."""
    _, _, section = (inspect.getdoc(cls) or "").partition("Attributes:\n")
    section = section.partition("\n\n")[0]
    entries = re.split(r"^ {4}(?=\w)", section, flags=re.MULTILINE)[1:]
    pairs = (entry.split(":", 1) for entry in entries)
    return {name: " ".join(text.split()) for name, text in pairs}


def _types(cls: type) -> dict[str, str]:
    """Return name -> type as the source writes it."""
    return {name: str(kind) for name, kind in inspect.get_annotations(cls).items()}


def _table(*columns: str) -> list[str]:
    """Return the head of a table, its last column without a name."""
    return ["| " + " | ".join(columns) + " | |\n", "|---" * (len(columns) + 1) + "|\n"]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _settings() -> str:
    parts: list[str] = []
    for room, cls in ROOMS.items():
        docs, types = _attribute_docs(cls), _types(cls)
        parts += [f"### `{room}`: `{cls.__name__}`\n\n", *_table("field", "type", "default")]
        parts += [
            _row(f"`{f.name}`", f"`{types[f.name]}`", f"`{f.default}`", docs[f.name])
            for f in attrs.fields(cls)
        ]
        parts.append("\n")
    return "".join(parts)


RANKS = {"wins": "goes over keywords", "normal": "", "yields": "config.json goes over it"}


def _environment() -> str:
    rows = (
        _row(
            f"`{v.name}`",
            f"`{FIELD_ROOMS[v.field]}.{v.field}`",
            RANKS[v.rank],
        )
        for v in ENVIRONMENT
    )
    return "".join([*_table("variable", "sets"), *rows])


def _config_keys() -> str:
    return "".join(f"- `{key}`\n" for key in CONFIG_KEYS)


def _signature(function: Callable[..., object]) -> str:
    """Return a hook's signature as a plugin writes it: without `self` and quotes."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    return str(signature.replace(parameters=parameters)).replace("'", "")


def _hook_parts(function: Callable[..., object]) -> dict[str, str]:
    """Return the five parts of a hook's docstring; see `contract.hooks` for their order."""
    summary, _, body = (inspect.getdoc(function) or "").partition("\n\n")
    when, _, rest = body.partition(".\n")
    shapes, raises, suite = re.split(r"\n(?=Raises |Must not raise|Suite: )", rest)
    parts = {
        "asked": summary,
        "when": f"{when}.",
        "shapes and units": shapes,
        "errors": raises,
        "checked by": suite.removeprefix("Suite: "),
    }
    return {name: " ".join(text.split()) for name, text in parts.items()}


def _hooks() -> str:
    parts: list[str] = []
    # in the order of the classes
    for name, function in (*vars(RequiredHooks).items(), *vars(OptionalHooks).items()):
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        optional = " (optional)" if name in OPTIONAL_HOOKS else ""
        parts.append(f"### `{name}`{optional}\n\n")
        parts.append(f"```\ndef {name}{_signature(function)}\n```\n\n")
        parts += [f"- **{part}:** {text}\n" for part, text in _hook_parts(function).items()]
        parts.append("\n")
    return "".join(parts)


def _answers() -> str:
    parts: list[str] = []
    for cls in _ANSWERS:
        summary = (inspect.getdoc(cls) or "").partition("\n\n")[0]
        parts.append(f"### `{cls.__name__}`\n\n{summary}\n\n")
        docs, types = _attribute_docs(cls), _types(cls)
        names = [f.name for f in attrs.fields(cls)] if attrs.has(cls) else list(types)
        parts += [f"- `{name}: {types[name]}`: {docs[name]}\n" for name in names]
        parts.append("\n" if docs else "")
    return "".join(parts)


_PARTS = (
    "layers.decoder",
    "layers.attention",
    "layers.mlp",
    "layers.sparse_mlp",
    "layers.routing",
    "layers.moe",
    "layers.norms",
    "layers.stream",
    "layers.taps",
    "layers.joint",
    "layers.heads",
    "layers.rope_config",
    "layers.short_conv",
    "layers.gated_delta",
    "layers.mamba2",
    "layers.gated_norm",
    "layers.fusion",
    "checkpoint.config",
    "checkpoint.dense_config",
    "contract.weights",
    "contract.errors",
)
"""Modules that a family imports, in the order of the page."""


def _members(module: ModuleType) -> Mapping[str, Any]:
    """Return what a module offers: the names of `__all__`, or the public ones of its own."""
    own = {
        name: value
        for name, value in vars(module).items()
        if name[0] != "_" and getattr(value, "__module__", None) == module.__name__
    }
    names = getattr(module, "__all__", list(own))
    found = {name: getattr(module, name) for name in names}
    return {n: v for n, v in found.items() if inspect.isclass(v) or inspect.isroutine(v)}


def _entry(name: str, value: Any) -> str:
    """Return a line a function; a class has one for itself and one a method."""
    summary = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
    lines = [f"- `{name}{_call(value)}`: {summary}\n"]
    methods = vars(value).items() if inspect.isclass(value) else ()
    for method, function in methods:
        plain = inspect.unwrap(getattr(function, "__func__", function))
        if method[0] != "_" and inspect.isfunction(plain):
            first = (inspect.getdoc(plain) or "").partition("\n\n")[0].replace("\n", " ")
            lines.append(f"  - `.{method}{_call(plain)}`: {first}\n")
    return "".join(lines)


def _call(value: Any) -> str:
    """Return the arguments of a call without their types, nothing where there are none."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    kept = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in parameters
        if p.name not in ("self", "cls")
    ]
    # a default without a name of its own has an address in its text
    return re.sub(r"<[^<>]* at 0x[0-9a-f]+>|NOTHING", "…", str(inspect.Signature(kept)))


def _layers() -> str:
    parts: list[str] = []
    for path in _PARTS:
        module = importlib.import_module(f"neve.{path}")
        summary = (inspect.getdoc(module) or "").partition("\n\n")[0].replace("\n", " ")
        parts.append(f"### `neve.{path}`\n\n{summary}\n\n")
        parts += [_entry(name, value) for name, value in _members(module).items()]
        parts.append("\n")
    return "".join(parts)


MAKERS: Mapping[str, Callable[[], str]] = {
    "settings": _settings,
    "environment": _environment,
    "config_keys": _config_keys,
    "hooks": _hooks,
    "answers": _answers,
    "layers": _layers,
}


def render(text: str) -> str:
    """Return a page with its generated parts made anew."""
    return _BLOCK.sub(lambda m: f"{m[1]}\n{MAKERS[m[2]]().strip()}\n\n{m[3]}", text)


def main() -> None:
    """Bring every page up to date."""
    for page in PAGES:
        page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
