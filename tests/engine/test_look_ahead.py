"""When a step goes to the device: before the last one is read, unless that would copy pools.

The host's back end computes when a step is built, so what is seen here is the order of calls.
What a device makes of two steps at once, the tests in `tests/gpu` see.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

import neve
from neve.engine.runner import Step
from neve.engine.stepper import Stepper
from neve.errors import NeveError
from neve.metal.runtime import dispatch, launch
from neve.testing.kernels import emulator
from neve.testing.kernels.emulator import HostBackend

pytestmark = pytest.mark.mlx

Load = Callable[..., neve.Model]
NEW_TOKENS = 5


@pytest.fixture(params=["operations", "kernels"])
def by_kernels(request: pytest.FixtureRequest):
    """Compute by MLX operations, and by kernels on the host."""
    kernels = request.param == "kernels"
    if kernels and emulator.compiler() is None:
        pytest.skip("no g++ builds kernels here")
    backend = launch.using(HostBackend(checked=False, orders=(0,)))
    with backend if kernels else contextlib.nullcontext():
        yield kernels


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Step]]:
    """What has happened to steps, in order."""
    happened: list[tuple[str, Step]] = []
    start, read = Step.start, Step.read

    def note_start(self: Step) -> None:
        happened.append(("start", self))
        start(self)

    def note_read(self: Step, **how: Any) -> Any:
        happened.append(("read", self))
        return read(self, **how)

    monkeypatch.setattr(Step, "start", note_start)
    monkeypatch.setattr(Step, "read", note_read)
    return happened


def test_a_step_starts_before_the_last_is_read(
    load: Load, goldens: dict[str, Any], by_kernels: bool, events: list[tuple[str, Step]]
) -> None:
    """SC-9: where kernels write in place the device has its next step when one ends."""
    prompt = goldens["story_short"]
    answer = load().generate(prompt["ids"], max_tokens=NEW_TOKENS).tokens
    steps = [step for what, step in events if what == "start"]
    at = {(what, id(step)): i for i, (what, step) in enumerate(events)}

    assert list(answer) == prompt["f32"]["tokens"][:NEW_TOKENS]
    assert len(steps) >= NEW_TOKENS
    for last, step in itertools.pairwise(steps):
        assert (at["start", id(step)] < at["read", id(last)]) == by_kernels


def test_rows_that_come_and_go_change_no_token(
    load: Load, goldens: dict[str, Any], by_kernels: bool
) -> None:
    """SC-9: slices, decode rows and endings follow one another with a step always ahead."""
    model = load(max_num_seqs=2, max_batched_tokens=64)
    prompts = [goldens[i] for i in ("story_short", "count", "copy")]
    lengths = (3, 6, 4)
    handles = [
        model.submit(p["ids"], max_tokens=n) for p, n in zip(prompts, lengths, strict=True)
    ]

    for prompt, length, handle in zip(prompts, lengths, handles, strict=True):
        assert list(handle.result(120).tokens) == prompt["f32"]["tokens"][:length]
    pools = model.stats().pools
    assert pools is not None
    assert pools.groups[0].num_live == 0


def test_a_step_that_cannot_be_read_fails_alone(
    load: Load, goldens: dict[str, Any], by_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SC-9: the step that was started behind it is dropped, and the engine serves on."""
    model, prompt = load(), goldens["story_short"]
    real, calls = Step.read, iter(range(1000))

    def read(self: Step, **how: Any) -> Any:
        if next(calls) == 2:
            raise RuntimeError("planted")
        return real(self, **how)

    monkeypatch.setattr(Step, "read", read)
    with pytest.raises(NeveError, match="planted"):
        model.generate(prompt["ids"], max_tokens=10)
    done = model.generate(prompt["ids"], max_tokens=NEW_TOKENS)

    assert done.usage.cached_tokens == 0
    assert list(done.tokens) == prompt["f32"]["tokens"][:NEW_TOKENS]


def stub(**values: Any) -> Any:
    """Return a step as far as the loop asks about it."""
    known = {"in_place": True, "decodes": True, "fences": [mx.zeros(1)]}
    return SimpleNamespace(**known | values)


def make_stepper(cold: Any = None) -> Stepper:
    core: Any = SimpleNamespace(scheduler=None, cold=cold)
    return Stepper(core, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrote", [False, True])
def test_restored_blocks_wait_until_the_device_is_free(wrote: bool) -> None:
    """SC-9: what the disk brings is written by an operation, a copy while others read."""
    restores = SimpleNamespace(wrote=wrote)
    stepper = make_stepper(SimpleNamespace(restores=restores))

    assert stepper._starts_early(stub(), stub()) == (not wrote)


@pytest.mark.parametrize(
    ("step", "previous", "early"),
    [
        (stub(), stub(), True),
        (stub(decodes=False), stub(), True),
        (stub(), stub(decodes=False), True),
        (stub(decodes=False), stub(decodes=False), False),
        (stub(in_place=False), stub(), False),
        (stub(), stub(in_place=False), False),
        (stub(), stub(fences=[]), False),
        (stub(), None, False),
        (None, stub(), False),
    ],
)
def test_both_steps_write_in_place_and_one_of_them_decodes(
    step: Any, previous: Any, early: bool
) -> None:
    """SC-9: a step that operations compute is waited for, and slices are never two at once."""
    assert make_stepper()._starts_early(step, previous) == early


def test_a_step_is_measured_from_when_it_has_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TG-1: what a prefill takes does not contain the step before it."""
    took: list[float] = []
    cold = SimpleNamespace(record_step=lambda _, seconds: took.append(seconds))
    stepper, plan = make_stepper(cold), SimpleNamespace(num_tokens=9, has_slices=True)
    clock = iter((10.0, 13.0, 20.0))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    for started_at in (4.0, 6.0, 18.0):  # the second one behind the first, the third alone
        stepper._measure(stub(started_at=started_at, plan=plan))

    assert took == [6.0, 3.0, 2.0]


def test_writes_by_operations_are_told_apart(
    load: Load, goldens: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SC-9: where a kernel is not taken on a device that has some, steps start late."""
    if emulator.compiler() is None:
        pytest.skip("no g++ builds kernels here")
    taken = dispatch.takes_kernel
    refused = {"prepare_heads", "decode_projected"}

    def takes_kernel(operation: str, *args: Any, **kwargs: Any) -> bool:
        return operation not in refused and taken(operation, *args, **kwargs)

    monkeypatch.setattr(dispatch, "takes_kernel", takes_kernel)
    steps: list[Step] = []
    start = Step.start
    monkeypatch.setattr(Step, "start", lambda self: (steps.append(self), start(self))[1])
    prompt = goldens["story_short"]
    with launch.using(HostBackend(checked=False, orders=(0,))):
        answer = load().generate(prompt["ids"], max_tokens=3).tokens

    assert list(answer) == prompt["f32"]["tokens"][:3]
    assert not any(step.in_place for step in steps)
