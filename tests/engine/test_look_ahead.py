"""When a step goes to the device: before the last one is read, unless that would copy pools."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

import neve
from neve.engine.loop import Loop
from neve.engine.runner import Step
from neve.errors import NeveError
from neve.metal import launch
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


@pytest.mark.parametrize("wrote", [False, True])
def test_restored_blocks_wait_until_the_device_is_free(wrote: bool) -> None:
    """SC-9: what the disk brings is written by an operation, a copy while others read."""
    cold = SimpleNamespace(wrote=wrote)
    core: Any = SimpleNamespace(scheduler=None, cold=cold)
    loop = Loop(core, None)  # type: ignore[arg-type]
    step: Any = SimpleNamespace(in_place=True, tokens=[mx.zeros(1)])

    assert loop._starts_early(step, step) == (not wrote)
    assert not loop._starts_early(step, None)
    assert not loop._starts_early(None, step)
    assert not loop._starts_early(SimpleNamespace(in_place=False), step)  # type: ignore[arg-type]
    assert not loop._starts_early(step, SimpleNamespace(tokens=[]))  # type: ignore[arg-type]
