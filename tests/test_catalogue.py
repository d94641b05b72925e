from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from neve.catalogue import (
    DEVELOPED_VARIABLE,
    ENTRY_POINT_GROUP,
    PLUGINS_VARIABLE,
    Catalogue,
    discover,
    load_family,
)
from neve.contract.cache_spec import (
    CacheLayout,
    FullAttention,
    RecurrentState,
    SlidingWindow,
    StateTensor,
    layer_routes,
    uniform_layout,
)
from neve.contract.forward import FINAL, ForwardOutput, Tap
from neve.contract.hooks import HOOK_NAMES, OPTIONAL_HOOKS, hookimpl
from neve.contract.plan import (
    HOOKSPEC_VERSION,
    ColdEligibility,
    ExecutionPlan,
    FamilyInfo,
    ModelShape,
    OutputProtocol,
)
from neve.contract.sidecar import recurrent_policy
from neve.contract.versions import CHANGES
from neve.errors import (
    ConfigError,
    FamilyNotInstalledError,
    HookFailedError,
    HookMissingError,
    HookVersionError,
    PluginConflictError,
    PluginError,
    UnsupportedModelError,
    WeightError,
)


def layout_of(specs: list[Any]) -> CacheLayout:
    return layer_routes(specs)


def config_of(num_layers: int) -> Any:
    """Return a config with the names that the default `model_shape` reads."""
    return SimpleNamespace(
        vocab_size=10, max_position_embeddings=64, num_hidden_layers=num_layers
    )


def step_of(taps: Sequence[Tap]) -> Any:
    """Return a step as far as the answer of `forward` is compared with one."""
    return SimpleNamespace(taps=tuple(taps), logit_rows=SimpleNamespace(shape=(0,)))


MakePlugin = Callable[..., ModuleType]
MakePoint = Callable[..., EntryPoint]


@pytest.fixture(autouse=True)
def _all_plugins_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PLUGINS_VARIABLE, raising=False)


LAYOUT = uniform_layout(FullAttention(1, 2), 1)


def _functions(name: str, model_types: tuple[str, ...], version: int) -> dict[str, Any]:
    info = FamilyInfo(name, version, model_types, f"neve-{name}")
    shape = ModelShape(vocab_size=10, max_context=64, num_layers=1)
    eligibility = ColdEligibility(False, name)
    return {
        "family_info": lambda: info,
        "parse_config": lambda raw: (name, dict(raw)),
        "model_shape": lambda config: shape,
        "declare_cache_groups": lambda config: LAYOUT,
        "build_model": lambda config, weights: (config, weights),
        "forward": lambda model, batch, context: ForwardOutput(None),
        "cold_restore_eligibility": lambda config: eligibility,
    }


@pytest.fixture
def make_plugin() -> MakePlugin:
    """Return a builder of plugin modules; functions replace hooks, None leaves one out."""

    def build(
        name: str = "fir",
        model_types: tuple[str, ...] = ("fir",),
        version: int = HOOKSPEC_VERSION,
        **functions: Callable[..., Any] | None,
    ) -> ModuleType:
        module = ModuleType(f"neve_{name}")
        for hook, function in (_functions(name, model_types, version) | functions).items():
            if function is not None:
                setattr(module, hook, hookimpl(function))
        return module

    return build


@pytest.fixture
def make_point(monkeypatch: pytest.MonkeyPatch) -> MakePoint:
    """Return a builder of entry points that lead to a module in memory."""

    def build(module: Any, name: str = "fir") -> EntryPoint:
        key = f"in_memory_{id(module)}"
        monkeypatch.setitem(sys.modules, key, SimpleNamespace(plugin=module))
        return EntryPoint(name, f"{key}:plugin", ENTRY_POINT_GROUP)

    return build


@pytest.fixture
def healthy(make_plugin: MakePlugin, make_point: MakePoint) -> EntryPoint:
    """An entry point of a family that works, to stand beside the broken ones."""
    return make_point(make_plugin("oak", ("oak",)), "oak")


def refusal(catalogue: Catalogue) -> PluginError:
    """Return the one refusal of a catalogue in which `oak` works."""
    assert list(catalogue.families) == ["oak"]
    assert catalogue.for_model_type("oak").name == "oak"
    (error,) = catalogue.refused
    return error


def test_a_family_is_found_through_its_entry_point(healthy: EntryPoint) -> None:
    """FW-1: a plugin that works stands in the catalogue under its family's name."""
    catalogue = discover([healthy])
    family = catalogue.for_model_type("oak")

    assert catalogue.refused == ()
    assert family.info == FamilyInfo("oak", HOOKSPEC_VERSION, ("oak",), "neve-oak")
    assert family.version == "unknown"


def test_the_installed_plugin_is_found_with_its_version() -> None:
    """FW-1: the entry points of the environment are read; Qwen3's plugin is among them."""
    family = discover().for_model_type("qwen3")

    assert family.info.distribution == "neve-qwen3"
    assert family.version[0].isdigit()


def test_discovery_imports_no_mlx() -> None:
    """FW-1: listing families costs no MLX import."""
    code = "import sys, neve; neve.families(); print('mlx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.stdout == "False\n"


def test_without_its_plugin_a_checkpoint_names_the_distribution(healthy: EntryPoint) -> None:
    """FW-1: the error says what to install, and what there is."""
    with pytest.raises(FamilyNotInstalledError) as caught:
        discover([healthy]).for_model_type("qwen3_moe")

    assert caught.value.model_type == "qwen3_moe"
    assert caught.value.distribution == "neve-qwen3-moe"
    assert "pip install neve-qwen3-moe" in str(caught.value)
    assert "installed: oak" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ["fir", "oak"]),
        ("", []),
        (" ", []),
        ("oak", ["oak"]),
        (" oak , fir", ["fir", "oak"]),
        ("pine", []),
    ],
)
def test_the_environment_chooses_plugins(
    value: str | None,
    expected: list[str],
    healthy: EntryPoint,
    make_plugin: MakePlugin,
    make_point: MakePoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FW-3: NEVE_PLUGINS is a list of entry points; set but empty starts without any."""
    if value is not None:
        monkeypatch.setenv(PLUGINS_VARIABLE, value)

    catalogue = discover([healthy, make_point(make_plugin())])

    assert sorted(catalogue.families) == expected
    assert catalogue.refused == ()


def test_an_unwanted_plugin_is_not_even_imported(
    healthy: EntryPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FW-3: a plugin that cannot be imported is out of the way once it is not listed."""
    monkeypatch.setenv(PLUGINS_VARIABLE, "oak")
    broken = EntryPoint("fir", "no_such_module", ENTRY_POINT_GROUP)

    assert discover([broken, healthy]).refused == ()


@pytest.mark.parametrize("hook", sorted(HOOK_NAMES - OPTIONAL_HOOKS))
def test_a_missing_mandatory_hook_is_named(
    hook: str, healthy: EntryPoint, make_plugin: MakePlugin, make_point: MakePoint
) -> None:
    """FW-3: a plugin without a mandatory hook is refused, by name; the others work."""
    point = make_point(make_plugin(**{hook: None}))
    error = refusal(discover([point, healthy]))

    assert isinstance(error, HookMissingError)
    assert error.plugin == "fir"
    assert error.reason == f"mandatory hooks are missing: {hook}"


def test_all_missing_hooks_are_named_at_once(
    healthy: EntryPoint, make_plugin: MakePlugin, make_point: MakePoint
) -> None:
    """FW-3: an author need not find out one hook at a time."""
    point = make_point(make_plugin(parse_config=None, build_model=None))

    assert "build_model, parse_config" in refusal(discover([healthy, point])).reason


@pytest.mark.parametrize("module", [None, 5, "text", ModuleType("empty")])
def test_what_is_no_plugin_is_refused(
    module: Any, healthy: EntryPoint, make_point: MakePoint
) -> None:
    """FW-3: an entry point may lead to anything."""
    error = refusal(discover([make_point(module), healthy]))

    assert isinstance(error, HookMissingError)
    assert "family_info" in error.reason


def test_a_hook_that_is_not_asked_for_is_named(
    healthy: EntryPoint, make_plugin: MakePlugin, make_point: MakePoint
) -> None:
    """FW-3: a misspelt optional hook is an error, not a silence."""
    point = make_point(make_plugin(execution_plann=lambda config: None))
    catalogue = discover([point, healthy])
    error = refusal(catalogue)

    assert isinstance(error, HookMissingError)
    assert "execution_plann" in error.reason
    with pytest.raises(HookMissingError):
        catalogue.for_model_type("fir")


def test_a_misnamed_argument_is_named(
    healthy: EntryPoint, make_plugin: MakePlugin, make_point: MakePoint
) -> None:
    """FW-3: a hook with another argument than the specification's is refused at load."""
    point = make_point(make_plugin(forward=lambda model, step, context: None))
    error = refusal(discover([point, healthy]))

    assert isinstance(error, HookMissingError)
    assert "forward" in error.reason
    assert "step" in error.reason
    assert "\n" not in error.reason
    assert error.model_types == ("fir",)


@pytest.mark.parametrize("version", [HOOKSPEC_VERSION - 1, HOOKSPEC_VERSION + 1])
def test_another_hook_specification_is_refused(
    version: int, healthy: EntryPoint, make_plugin: MakePlugin, make_point: MakePoint
) -> None:
    """FW-3: a plugin built for another specification names both versions and what to do."""
    error = refusal(discover([make_point(make_plugin(version=version)), healthy]))

    assert isinstance(error, HookVersionError)
    assert f"specification {version}" in error.reason
    assert "neve-fir" in error.reason
    assert bool(error.changes) == (version < HOOKSPEC_VERSION)


def test_an_older_plugin_is_told_what_to_change(
    healthy: EntryPoint, make_plugin: MakePlugin, make_point: MakePoint
) -> None:
    """FW-3: hook by hook, of those that it has."""
    plugin = make_plugin(version=1, model_shape=None)
    error = refusal(discover([make_point(plugin), healthy]))

    assert isinstance(error, HookVersionError)
    assert set(error.changes) == {
        "build_model",
        "cold_restore_eligibility",
        "family_info",
        "forward",
    }
    assert "ForwardOutput(logits, hidden)" in error.changes["forward"]
    assert all(f"{hook}: {text}" in error.reason for hook, text in error.changes.items())


def test_every_version_says_what_it_changed() -> None:
    """FW-3: no version of the specification comes without a list of changes."""
    assert set(CHANGES) == set(range(2, HOOKSPEC_VERSION + 1))
    assert all(hooks.keys() <= HOOK_NAMES for hooks in CHANGES.values())


def test_the_version_is_looked_at_before_the_hooks(
    healthy: EntryPoint, make_plugin: MakePlugin, make_point: MakePoint
) -> None:
    """FW-3: a newer plugin's new hooks and arguments are no faults of it."""
    plugin = make_plugin(
        version=HOOKSPEC_VERSION + 1,
        embed_media=lambda model: None,
        forward=lambda model, batch, context, media: None,
    )

    assert isinstance(refusal(discover([make_point(plugin), healthy])), HookVersionError)


def test_a_module_that_is_missing_is_refused(healthy: EntryPoint) -> None:
    """FW-3: an import that fails is a typed error that names the plugin and its module."""
    point = EntryPoint("fir", "no_such_module.plugin", ENTRY_POINT_GROUP)
    error = refusal(discover([point, healthy]))

    assert error.plugin == "fir"
    assert "no_such_module.plugin raised ModuleNotFoundError" in error.reason


@pytest.mark.parametrize("raised", [ImportError("no torch"), ZeroDivisionError(), OSError(5)])
def test_an_import_may_raise_anything(
    raised: Exception, healthy: EntryPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FW-3: whatever a plugin's module raises, it is refused and the others work."""

    def load(point: EntryPoint) -> Any:
        if point.name == "fir":
            raise raised
        return original(point)

    original = EntryPoint.load
    monkeypatch.setattr(EntryPoint, "load", load)
    error = refusal(discover([EntryPoint("fir", "fir", ENTRY_POINT_GROUP), healthy]))

    assert type(raised).__name__ in error.reason
    assert error.__cause__ is raised


@pytest.mark.parametrize("raised", [SystemExit(1), KeyboardInterrupt()])
def test_a_wish_to_end_the_process_is_respected(
    raised: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FW-3: only an `Exception` is a plugin's fault; an exit or an interrupt goes through."""

    def load(point: EntryPoint) -> Any:
        raise raised

    monkeypatch.setattr(EntryPoint, "load", load)

    with pytest.raises(type(raised)):
        discover([EntryPoint("fir", "fir", ENTRY_POINT_GROUP)])


def test_an_object_that_cannot_be_looked_at_is_refused(
    healthy: EntryPoint, make_point: MakePoint
) -> None:
    """FW-3: looking for hooks runs a stranger's code as well."""

    class Lazy:
        def __dir__(self) -> list[str]:
            raise ImportError("no torch")

    error = refusal(discover([make_point(Lazy()), healthy]))

    assert error.reason == "looking for its hooks raised ImportError: no torch"


def _raise() -> Any:
    raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (_raise, "family_info raised RuntimeError: not today"),
        (lambda: FamilyInfo("fir", 1, "fir", "neve-fir"), "family_info raised TypeError"),
        (lambda: None, "must return a FamilyInfo"),
        (lambda: "fir", "must return a FamilyInfo, got ['fir']"),
        (lambda config: None, "family_info raised HookCallError"),
    ],
)
def test_a_family_that_cannot_say_who_it_is_is_refused(
    info: Callable[..., Any],
    reason: str,
    healthy: EntryPoint,
    make_plugin: MakePlugin,
    make_point: MakePoint,
) -> None:
    """FW-3: a `family_info` that raises or returns junk is a typed error."""
    error = refusal(discover([make_point(make_plugin(family_info=info)), healthy]))

    assert reason in error.reason


def test_a_refused_plugin_answers_with_its_error(
    make_plugin: MakePlugin, make_point: MakePoint
) -> None:
    """FW-3: who needs the broken family is told why, not to install it."""
    catalogue = discover([make_point(make_plugin(model_types=("larch",), build_model=None))])

    for asked in ("larch", "fir"):
        with pytest.raises(HookMissingError, match="build_model"):
            catalogue.for_model_type(asked)


def test_two_plugins_for_one_model_type_are_both_refused(
    healthy: EntryPoint, make_plugin: MakePlugin, make_point: MakePoint
) -> None:
    """FW-3: neither wins, each error names the other, and asking for the type raises."""
    one = make_point(make_plugin("fir", ("fir", "conifer")), "fir")
    other = make_point(make_plugin("yew", ("conifer",)), "yew")
    catalogue = discover([one, healthy, other])
    first, second = catalogue.refused

    assert list(catalogue.families) == ["oak"]
    assert isinstance(first, PluginConflictError)
    assert isinstance(second, PluginConflictError)
    assert (first.plugin, second.plugin) == ("fir", "yew")
    assert first.reason == "model type 'conifer' is claimed by 'yew' of neve-yew too"
    assert second.reason == "model type 'conifer' is claimed by 'fir' of neve-fir too"
    with pytest.raises(PluginConflictError):
        catalogue.for_model_type("conifer")
    with pytest.raises(PluginConflictError):
        catalogue.for_model_type("fir")


def test_two_families_of_one_name_are_both_refused(
    make_plugin: MakePlugin, make_point: MakePoint
) -> None:
    """FW-3: families are listed by name, so a name has one owner, whatever it answers for."""
    points = [make_point(make_plugin(model_types=(t,)), "fir") for t in ("a", "b")]
    catalogue = discover(points)

    assert catalogue.families == {}
    assert [error.reason for error in catalogue.refused] == [
        "name 'fir' is claimed by 'fir' of neve-fir too"
    ] * 2


def test_three_rivals_are_all_named(make_plugin: MakePlugin, make_point: MakePoint) -> None:
    """FW-3: a conflict names everybody who takes part in it."""
    names = ("ash", "elm", "fir")
    points = [make_point(make_plugin(name, ("tree",)), name) for name in names]

    reasons = [error.reason for error in discover(points).refused]

    assert len(reasons) == 3
    assert "'elm' of neve-elm, 'fir' of neve-fir" in reasons[0]


def test_a_model_type_listed_twice_is_no_conflict(
    make_plugin: MakePlugin, make_point: MakePoint
) -> None:
    """FW-3: a family does not compete with itself."""
    catalogue = discover([make_point(make_plugin(model_types=("fir", "fir")))])

    assert catalogue.for_model_type("fir").name == "fir"


def test_refusals_are_logged(healthy: EntryPoint) -> None:
    """FW-3: each refusal is one event with the plugin and the reason."""
    with capture_logs() as logs:
        discover([EntryPoint("fir", "no_such_module", ENTRY_POINT_GROUP), healthy])

    assert [(e["event"], e["plugin"]) for e in logs] == [("families.plugin.refused", "fir")]
    assert "ModuleNotFoundError" in logs[0]["reason"]


def test_optional_hooks_have_defaults(make_plugin: MakePlugin) -> None:
    """FW-2: a family that leaves the optional hooks out is dense, paged and plain."""
    layout = uniform_layout(FullAttention(1, 8), 3)
    optional = dict.fromkeys(["forward", "model_shape", "cold_restore_eligibility"])
    plugin = make_plugin(**optional, declare_cache_groups=lambda config: layout)
    family: Any = load_family("fir", plugin)
    config = config_of(3)

    assert family.execution_plan(None) == ExecutionPlan()
    assert family.output_protocol(None) == OutputProtocol()
    assert family.build_sidecar_policy(config, "float32") is None
    assert family.model_shape(config) == ModelShape(10, 64, 3)
    assert family.cold_restore_eligibility(config).eligible
    assert family.cold_restore_eligibility(None).eligible
    answer, step = ForwardOutput(None), step_of(())
    assert family.forward(lambda *step: step and answer, step, None) is answer


SLIDING, STATE = SlidingWindow(4, 1, 8), RecurrentState([StateTensor("sum", (2,))])


@pytest.mark.parametrize(
    ("specs", "group"),
    [
        ([SLIDING, FullAttention(1, 8)], "sliding_window"),
        ([STATE, FullAttention(1, 8)], "ssm_state"),
    ],
)
def test_what_a_layout_keeps_outside_its_blocks_has_a_sidecar(
    specs: list[Any], group: str, make_plugin: MakePlugin
) -> None:
    """FW-2, SD-3: the default policy and the default eligibility follow the cache layout."""
    plugin = make_plugin(
        cold_restore_eligibility=None,
        model_shape=None,
        declare_cache_groups=lambda config: layout_of(specs),
    )
    family = load_family("fir", plugin)
    policy = family.build_sidecar_policy(config_of(2), "float32")

    assert policy is not None
    assert policy.group == group
    assert family.cold_restore_eligibility(config_of(2)).eligible


@pytest.mark.parametrize("specs", [[SLIDING, STATE], [SLIDING, SlidingWindow(5, 1, 8)]])
def test_what_no_sidecar_holds_is_not_restored(
    specs: list[Any], make_plugin: MakePlugin
) -> None:
    """FW-2, SD-3: by default a layout of several kinds of state says no to the cold tier."""
    plugin = make_plugin(
        cold_restore_eligibility=None,
        model_shape=None,
        declare_cache_groups=lambda config: layout_of(specs),
    )
    family = load_family("fir", plugin)
    answer = family.cold_restore_eligibility(config_of(2))

    assert family.build_sidecar_policy(config_of(2), "float32") is None
    assert not answer.eligible
    assert "sidecar" in answer.reason


def test_a_config_without_sizes_needs_the_hook(make_plugin: MakePlugin) -> None:
    """FW-2: the error names the hook that was left out, and what the config lacks."""
    family = load_family("fir", make_plugin(model_shape=None))

    with pytest.raises(HookMissingError, match=r"model_shape.*vocab_size"):
        family.model_shape(SimpleNamespace(max_position_embeddings=64))


@pytest.mark.parametrize("answer", [None, "logits", (1, 2)])
def test_forward_returns_a_forward_output(answer: object, make_plugin: MakePlugin) -> None:
    """FW-2: an answer of version 1 is an error that names the type."""
    family: Any = load_family("fir", make_plugin(forward=lambda model: answer))

    with pytest.raises(PluginError, match=f"a ForwardOutput, got {type(answer).__name__}"):
        family.forward(None, step_of(()), None)


@pytest.mark.parametrize(("asked", "given"), [([Tap(1)], []), ([], [Tap(2)]), ([FINAL], [1])])
def test_forward_returns_the_taps_that_were_asked_for(
    asked: list[Tap], given: list[Any], make_plugin: MakePlugin
) -> None:
    """FW-2: a family without a tap is an error and no missing key in the engine."""
    hidden: Any = dict.fromkeys(given)
    output = ForwardOutput(None, hidden)
    family: Any = load_family("fir", make_plugin(forward=lambda model: output))

    with pytest.raises(PluginError, match="hidden states of"):
        family.forward(None, step_of(asked), None)


GIVEN = ("tiny", "float32")
HYBRID = layer_routes([RecurrentState([StateTensor("conv", (2, 4))])])


def test_optional_hooks_are_asked_if_offered(make_plugin: MakePlugin) -> None:
    """FW-2: what a family states counts."""
    plan, protocol = ExecutionPlan(row_exact="always"), OutputProtocol(("<end>",))
    policy = recurrent_policy("ssm_state", HYBRID, "float32")
    plugin = make_plugin(
        execution_plan=lambda config: plan,
        output_protocol=lambda config: protocol,
        build_sidecar_policy=lambda config, dtype: policy if (config, dtype) == GIVEN else None,
    )
    family = load_family("fir", plugin)

    assert family.execution_plan(None) is plan
    assert family.output_protocol(None) is protocol
    assert family.build_sidecar_policy(*GIVEN) is policy


def test_arguments_reach_the_hook_by_name(make_plugin: MakePlugin) -> None:
    """FW-2: a hook gets what it asks for, in whatever order, and may leave arguments out."""
    asked: list[Any] = []
    shape = ModelShape(7, 64, 1)
    plugin = make_plugin(
        forward=lambda context, model: asked.append((model, context)) or ForwardOutput(None),
        model_shape=lambda: shape,
    )
    family: Any = load_family("fir", plugin)
    family.forward("model", step_of(()), "context")

    assert asked == [("model", "context")]
    assert family.model_shape("config") is shape
    assert family.parse_config({"a": 1}) == ("fir", {"a": 1})
    assert family.build_model("config", "weights") == ("config", "weights")
    assert family.cold_restore_eligibility().reason == "fir"


def test_one_familys_hook_is_never_asked_for_another(
    make_plugin: MakePlugin, make_point: MakePoint
) -> None:
    """FW-2: with several families loaded, a question reaches the one that it is put to."""
    asked: list[str] = []

    def parser(name: str) -> Callable[..., Any]:
        def parse(raw: Any) -> str:
            asked.append(name)
            return name

        return parse

    names = ("elm", "fir", "oak")
    catalogue = discover(
        [
            make_point(make_plugin(name, (name,), parse_config=parser(name)), name)
            for name in names
        ]
    )

    assert catalogue.for_model_type("fir").parse_config({}) == "fir"
    assert catalogue.for_model_type("oak").declare_cache_groups(None) is LAYOUT
    assert asked == ["fir"]


ASKED: dict[str, tuple[Any, ...]] = {
    "parse_config": ({},),
    "model_shape": (None,),
    "declare_cache_groups": (None,),
    "build_model": (None, None),
    "build_sidecar_policy": (None, "float32"),
    "cold_restore_eligibility": (None,),
    "execution_plan": (None,),
    "output_protocol": (None,),
}


def _raising(error: Exception) -> Callable[..., Any]:
    def hook(config: Any) -> Any:
        raise error

    return hook


@pytest.mark.parametrize("hook", ASKED)
def test_what_a_hook_raises_at_load_names_family_and_hook(
    hook: str, make_plugin: MakePlugin
) -> None:
    """FW-3: a stranger's error is wrapped, whatever it is, and stays the cause."""
    functions: dict[str, Callable[..., Any]] = {
        "parse_config": lambda raw: 1 / 0,
        "build_model": lambda config, weights: 1 / 0,
        "build_sidecar_policy": lambda config, dtype: 1 / 0,
    }
    function = functions.get(hook, lambda config: 1 / 0)
    family = load_family("fir", make_plugin(**{hook: function}))

    with pytest.raises(HookFailedError, match=f"'fir'.*{hook} raised ZeroDiv") as caught:
        getattr(family, hook)(*ASKED[hook])
    assert (caught.value.plugin, caught.value.hook) == ("fir", hook)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    "error", [ConfigError("a.b", "must be 1"), UnsupportedModelError("no"), WeightError("no")]
)
def test_errors_that_hooks_may_raise_reach_the_caller(
    error: Exception, make_plugin: MakePlugin
) -> None:
    """FW-2: what a family says of a config or of weights is not dressed up."""
    family = load_family("fir", make_plugin(declare_cache_groups=_raising(error)))

    with pytest.raises(type(error)) as caught:
        family.declare_cache_groups(None)
    assert caught.value is error


@pytest.mark.parametrize(
    "hook",
    [
        "model_shape",
        "declare_cache_groups",
        "cold_restore_eligibility",
        "execution_plan",
        "output_protocol",
    ],
)
def test_an_answer_of_another_type_names_family_and_hook(
    hook: str, make_plugin: MakePlugin
) -> None:
    """FW-3: a wrong answer is found where it is given, not where it is used."""
    family = load_family("fir", make_plugin(**{hook: lambda config: "later"}))

    with pytest.raises(HookFailedError, match=rf"'fir'.*{hook} must return \w+.*'later'"):
        getattr(family, hook)(None)


@pytest.mark.parametrize("num_layers", [1, 3])
def test_a_layout_of_other_layers_is_refused_at_load(
    num_layers: int, make_plugin: MakePlugin
) -> None:
    """FW-3: one route a layer; a missing one would be an index error in the first step."""
    layout = uniform_layout(FullAttention(1, 2), num_layers)
    functions = {
        "declare_cache_groups": lambda config: layout,
        "model_shape": lambda config: ModelShape(10, 64, num_layers=2),
    }
    family = load_family("fir", make_plugin(**functions))

    with pytest.raises(HookFailedError, match=f"{num_layers} routes for the 2 layers"):
        family.declare_cache_groups(None)


@pytest.mark.parametrize("shape", [(3, 10), (10,), (1, 2, 10)])
def test_logits_of_other_rows_are_refused(shape: Any, make_plugin: MakePlugin) -> None:
    """FW-3: logits of every token of a slice would be sampled from at the wrong row."""
    logits: Any = SimpleNamespace(shape=shape, ndim=len(shape))
    output = ForwardOutput(logits)
    plugin = make_plugin(forward=lambda model, batch, context: output)
    family = load_family("fir", plugin)
    batch: Any = SimpleNamespace(logit_rows=SimpleNamespace(shape=(2,)))
    model: Any = None

    with pytest.raises(HookFailedError, match=r"forward must return logits \[2, vocab"):
        family.forward(model, batch, model)


@pytest.fixture
def source(tmp_path: Path, make_plugin: MakePlugin) -> ModuleType:
    """A plugin in a package of two files."""
    module = make_plugin()
    module.__file__ = str(tmp_path / "plugin.py")
    for name in ("plugin.py", "model.py"):
        (tmp_path / name).write_text(f"# {name}", encoding="utf-8")
    return module


def test_an_edited_plugin_has_another_state_version(
    source: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CT-2: under development, what older code wrote to disk is not found."""
    monkeypatch.setenv(DEVELOPED_VARIABLE, "elm, fir")
    before, again = (load_family("fir", source).info.state_version for _ in range(2))
    (tmp_path / "model.py").write_text("# a mended rotary embedding", encoding="utf-8")
    after = load_family("fir", source).info.state_version

    assert before == again
    assert before != after
    assert 0 <= after < 2**53


@pytest.mark.parametrize("named", [None, "", "elm"])
def test_other_plugins_keep_their_state_version(
    named: str | None, source: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CT-2: users keep their prefixes."""
    monkeypatch.delenv(DEVELOPED_VARIABLE, raising=False)
    if named is not None:
        monkeypatch.setenv(DEVELOPED_VARIABLE, named)

    assert load_family("fir", source).info.state_version == 1


def test_a_plugin_without_files_cannot_be_digested(
    make_plugin: MakePlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CT-2: the switch says so and changes nothing in silence."""
    monkeypatch.setenv(DEVELOPED_VARIABLE, "fir")
    with pytest.raises(PluginError, match=DEVELOPED_VARIABLE):
        load_family("fir", make_plugin())
