"""Nothing that a caller brings ends the engine for everybody; an engine that ends says why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from neve.contract.prompt import text_prompt
from neve.engine.captures import Captures
from neve.engine.cold import EngineCold
from neve.engine.commands import Call, Cancel, Submit
from neve.engine.handles import Handle
from neve.engine.journal import Journal
from neve.engine.output import RequestOutput
from neve.engine.stepper import Stepper
from neve.errors import EngineClosedError, NeveError, RequestError
from neve.ids import RequestId
from neve.sampling.params import SamplingParams
from neve.scheduler.admission import Admission
from neve.scheduler.scheduler import Scheduler

pytestmark = pytest.mark.mlx

LONG: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True}
PROMPT = "Once upon a time there was a miller who lived by a river. " * 4


def is_alive(model: Any) -> bool:
    """Return whether a model answers."""
    return model.submit("Once", max_tokens=2).result(60).usage.completion_tokens == 2


class Interrupt(BaseException):
    """An error that is no `Exception`."""


class BrokenLoop(asyncio.SelectorEventLoop):
    """An event loop that refuses what other threads hand to it, once it is told to."""

    error: BaseException | None = None

    def call_soon_threadsafe(self, *args: Any, **keywords: Any) -> Any:
        if self.error is not None:
            raise self.error
        return super().call_soon_threadsafe(*args, **keywords)


async def _iterate(handle: Handle) -> None:
    async for _ in handle:
        pass


async def _await(handle: Handle) -> None:
    await handle


def _leave_behind(loop: asyncio.AbstractEventLoop, waiting: Any) -> Any:
    """Let a task begin to wait on a loop, and stop the loop under it."""
    task = loop.create_task(waiting)
    loop.run_until_complete(asyncio.sleep(0.05))
    return task


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("wait", [_iterate, _await])
@pytest.mark.parametrize("error", [None, ValueError("planted"), Interrupt("planted")])
def test_event_loop_that_is_gone(
    load: Callable[..., Any],
    wait: Callable[[Handle], Any],
    error: BaseException | None,
):
    """A request outlives the event loop that awaited it, and so does the engine."""
    model = load()
    other = model.submit(PROMPT, **LONG)
    loop = BrokenLoop()
    handle = model.submit(PROMPT, **LONG)
    task = _leave_behind(loop, wait(handle))
    if error is None:
        loop.close()
    loop.error = error

    assert len(other.result(60).tokens) == len(handle.result(60).tokens) == 400
    assert is_alive(model)
    assert model.stats().faults["listener"] == 1
    if error is not None:
        task.cancel()
        loop.error = None
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()


SUBMIT_FIELDS = [field.name for field in attrs.fields(Submit)]


@pytest.mark.parametrize("kind", ["hostile", "hostile_base"])
@pytest.mark.parametrize(
    "command", ["itself", "Cancel", "Call.function", "Call.future", *SUBMIT_FIELDS]
)
def test_hostile_commands(
    model: Any, request: pytest.FixtureRequest, kind: str, command: str, goldens: Any
):
    """Whatever a command holds, the engine goes on, and the requests beside it too."""
    odd = request.getfixturevalue(kind)
    beside = model.submit(goldens["count"]["ids"], max_tokens=30)
    handle = Handle(RequestId(10**9), lambda _: None, model._engine.faults)
    good = Submit(
        handle, text_prompt([1, 2, 3]), SamplingParams(max_tokens=1), salt=0, submitted_at=0.0
    )
    make = {
        "itself": lambda: odd,
        "Cancel": lambda: Cancel(odd),
        "Call.function": lambda: Call(odd),
        "Call.future": lambda: Call(lambda _: 1, odd),
    }.get(command, lambda: attrs.evolve(good, **{command: odd}))
    try:
        model._engine._commands.put(made := make())
    except (RequestError, type(odd).error):
        made = None  # refused where it is made, on the caller's thread

    if command == "Call.function":
        assert isinstance(made, Call)
        assert isinstance(made.future.exception(60), BaseException)
    if made is not None and command in SUBMIT_FIELDS and command != "handle":
        assert isinstance(handle._future.exception(60), NeveError)
    assert list(beside.result(60).tokens) == goldens["count"]["f32"]["tokens"][:30]
    assert is_alive(model)
    assert model.stats().scheduler.running == model.stats().scheduler.waiting == 0


@pytest.mark.parametrize("error", [ValueError("planted"), Interrupt("planted")])
def test_failing_call_belongs_to_its_caller(model: Any, error: BaseException):
    """What a function raises on the engine thread is raised where it was asked for."""

    def function(_: Any) -> None:
        raise error

    with pytest.raises(type(error), match="planted"):
        model._engine.call(function)
    assert is_alive(model)


PARAMETERS = [
    *("prompt", "tools", "template_kwargs", "cache_salt", "owner"),
    *(field.name for field in attrs.fields(SamplingParams)),
]


@pytest.mark.parametrize("param", PARAMETERS)
def test_hostile_fields_are_refused_at_submit(model: Any, hostile: Any, param: str):
    """A field that raises when it is read is refused on the caller's thread."""
    given = {"prompt": [{"role": "user", "content": "Hi"}], param: hostile}
    with pytest.raises(RequestError) as caught:
        model.submit(**given)

    assert caught.value.param == param
    assert is_alive(model)


def _subclass(kind: type[Any], value: Any) -> Any:
    """Return an instance of a subclass whose every other method raises."""
    builtin = {"__new__", "__init__", "__class__", "__getattribute__", "__doc__", "__del__"}

    def raises(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("planted")

    names = [n for n in dir(kind) if n not in builtin and not n.startswith("__init_sub")]
    quiet = {"__subclasshook__", "__dir__", "__ge__", "__le__", "__bool__", "__len__"}
    methods = {name: raises for name in names if name not in quiet}
    return type("Odd", (kind,), methods)(value)


# made by functions: pytest would look at the values
ODD_VALUES: list[tuple[str, Callable[[], Any]]] = [
    ("owner", lambda: _subclass(str, "anna")),
    ("cache_salt", lambda: _subclass(str, "anna")),
    ("stop", lambda: [_subclass(str, "never said")]),
    ("max_tokens", lambda: _subclass(int, 4)),
    ("temperature", lambda: _subclass(float, 0.5)),
    ("top_k", lambda: _subclass(int, 4)),
    ("seed", lambda: _subclass(int, 4)),
    ("prompt", lambda: _subclass(str, "Once")),
    ("prompt", lambda: [_subclass(int, 4)] * 4),
]


@pytest.mark.parametrize(("param", "make"), ODD_VALUES)
def test_no_method_of_a_caller_reaches_the_engine(
    model: Any, param: str, make: Callable[[], Any]
):
    """A value of a caller's own class arrives as a builtin one, or is refused at once."""
    try:
        handle = model.submit(**{"prompt": PROMPT, "max_tokens": 2, param: make()})
    except RequestError as error:
        handle = None
        assert error.param == param  # noqa: PT017  either end is right
    if handle is not None:
        assert handle.result(60).usage.completion_tokens >= 1
    assert is_alive(model)


def test_unhashable_owner_of_a_hybrid():
    """A hybrid keeps states by owner; one that cannot be a key is refused by name."""
    import neve

    checkpoint = Path(__file__).parents[2] / "checkpoints" / "lfm2"
    with neve.load(checkpoint, paged_cache_memory_mb=16) as hybrid:
        with pytest.raises(RequestError, match="owner must be a string"):
            hybrid.submit("Once", owner=["x"])  # type: ignore[arg-type]
        assert is_alive(hybrid)


@pytest.mark.parametrize("error", [ValueError("planted"), Interrupt("planted")])
@pytest.mark.parametrize("place", ["text", "journal", "accept"])
def test_fault_of_one_request(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException
):
    """What goes wrong in one request's own work fails it alone, or nobody."""
    model, victims = load(), set[int]()
    owner, name = {
        "text": (RequestOutput, "add"),
        "journal": (Journal, "end"),
        "accept": (Journal, "begin"),
    }[place]
    real = getattr(owner, name)

    def planted(self: Any, *args: Any) -> Any:
        if not victims:
            victims.add(1)
            raise error
        return real(self, *args)

    monkeypatch.setattr(owner, name, planted)
    first, second = (model.submit(PROMPT, max_tokens=9) for _ in range(2))
    failures = [handle._future.exception(60) for handle in (first, second)]

    assert [str(f) for f in failures if f] == (
        [] if place == "journal" else [f"the request failed: {type(error).__name__}: planted"]
    )
    assert is_alive(model)
    assert model.stats().pools.groups[0].num_live == 0
    assert model.stats().scheduler.running == model.stats().scheduler.waiting == 0


def test_failing_cold_tier_costs_no_answer(
    load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A cold tier that raises loses what it was to write, is counted, and nothing else."""

    def planted(*_: Any, **__: Any) -> None:
        raise ValueError("planted")

    model = load(persist_paged_cache=True, cold_cache_dir=str(tmp_path))
    model.wait_identified()
    monkeypatch.setattr(Captures, "_capture", planted)

    assert [is_alive(model) for _ in range(3)] == [True] * 3
    assert len(model.generate(PROMPT, max_tokens=4).tokens) == 4
    assert is_alive(model)
    assert model.stats().faults["cold"] >= 1
    assert 'neve_engine_faults_total{model="' in model.metrics()


def test_plan_that_fails_over_a_waiting_request(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    """An admission that raises fails those that wait; it is not tried again for ever."""
    model, real = load(), Admission.try_admit
    raised: list[int] = []

    def planted(self: Admission, *args: Any) -> bool:
        if len(raised) < 1:
            raised.append(1)
            raise ValueError("planted")
        return real(self, *args)

    monkeypatch.setattr(Admission, "try_admit", planted)
    with pytest.raises(NeveError, match="planted"):
        model.submit(PROMPT).result(60)
    assert is_alive(model)


@pytest.mark.parametrize("error", [ValueError("planted"), Interrupt("planted")])
@pytest.mark.parametrize("breaking", ["nothing", "cold", "journal", "finish"])
def test_dying_engine_fails_everyone_and_closes_everything(
    load: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    breaking: str,
):
    """An engine that must end says why to everyone, now and later, and closes each part."""
    model = load(persist_paged_cache=True, cold_cache_dir=str(tmp_path), max_num_seqs=1)
    closed: list[str] = []
    broken = {"cold": EngineCold.flush, "journal": Journal.close, "finish": Scheduler.finish}

    def spied(owner: type[Any], name: str) -> None:
        real = getattr(owner, name)

        def spy(self: Any, *args: Any) -> Any:
            closed.append(owner.__name__)
            if breaking != "nothing" and real is broken[breaking]:
                raise OSError("planted while closing")
            return real(self, *args)

        monkeypatch.setattr(owner, name, spy)

    for owner, name in ((EngineCold, "close"), (EngineCold, "flush"), (Journal, "close")):
        spied(owner, name)
    tier = model._engine.call(lambda core: core.cold.tier)
    handles = [model.submit(PROMPT, **LONG) for _ in range(3)]
    next(iter(handles[0]))
    if breaking == "finish":
        spied(Scheduler, "finish")

    core, step = model._engine.call(lambda core: core), Stepper.step

    def planted(stepper: Stepper) -> None:
        if stepper._core is core:
            raise error
        step(stepper)

    monkeypatch.setattr(Stepper, "step", planted)
    model._engine._thread.join(60)

    for handle in handles:
        with pytest.raises(EngineClosedError, match=r"ended by a fault.*planted") as caught:
            handle.result(60)
        assert caught.value.__cause__ is error
    for late in (lambda: model.generate("Once"), model.stats):
        with pytest.raises(EngineClosedError, match="planted"):
            late()
    assert {"EngineCold", "Journal"} <= set(closed)
    assert not any(thread.is_alive() for thread in tier.reader._threads)
    model.close()
