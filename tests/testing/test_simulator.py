"""Scheduler, coordinator and managers over a device without arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from neve.contract.cache_spec import (
    CacheLayout,
    FullAttention,
    RecurrentState,
    SlidingWindow,
    StateTensor,
    layer_routes,
)
from neve.contract.prompt import MediaSpan, Prompt
from neve.errors import ContextLengthExceededError
from neve.ids import SaltDomain
from neve.kvcache.block_identity import PrefixChain
from neve.kvcache.block_table import BlockTable
from neve.kvcache.coordinator import Coordinator
from neve.kvcache.sequence import Sequence as CacheSequence
from neve.kvcache.state_manager import StateManager
from neve.settings import SchedulerSettings
from neve.testing.simulated_device import SimulatedRequest
from neve.testing.simulated_model import SimulatedModel
from neve.testing.simulated_setup import SimulatorSetup
from neve.testing.simulator import Simulator

SIZE, WINDOW, SLICE, VOCAB = 4, 6, 8, 5
FULL = FullAttention(1, 8)
SLIDING = SlidingWindow(WINDOW, 1, 8)
STATE = RecurrentState([StateTensor("sum", (1,))])
LAYOUTS = {
    "full": layer_routes([FULL]),
    "window": layer_routes([FULL, SLIDING]),
    "recurrent": layer_routes([STATE]),
    "hybrid": layer_routes([STATE, FULL]),
    "all": layer_routes([FULL, SLIDING, STATE]),
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)

HEAD = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]


def simulator(
    layout: CacheLayout, *num_blocks: int, end_token: int | None = None, **scheduler: Any
) -> Simulator:
    """Return a simulator with so many usable blocks in each group; 64 if none are named."""
    count = max(1, len(layout.groups))
    sizes = (num_blocks or (64,)) * count
    options: dict[str, Any] = {
        "max_num_seqs": 4,
        "prefill_chunk_size": SLICE,
        "long_prefill_tokens": SLICE,
        "watermark_fraction": 0.0,
    }
    setup = SimulatorSetup(
        layout=layout,
        num_blocks=[n + 1 for n in sizes[:count]],
        block_size=SIZE,
        max_slice=SLICE,
        max_context=96,
        snapshots=8,
        scheduler=SchedulerSettings(**(options | scheduler)),
    )
    return Simulator(setup, SimulatedModel(VOCAB, end_token))


def text(tokens: Sequence[int]) -> Prompt:
    return Prompt(tuple(tokens))


def picture(tokens: Sequence[int], start: int, length: int, number: int = 1) -> Prompt:
    return Prompt(tuple(tokens), media=(MediaSpan(bytes([number]) * 32, start, length),))


def rest(known: SimulatedRequest, model: SimulatedModel) -> list[int]:
    """Return the tokens that plain decoding would yield from here on."""
    request = known.request
    answer = model.answer(known.prompt, request.salt, request.max_tokens)
    return answer[request.num_outputs :]


def wrong(known: SimulatedRequest, model: SimulatedModel, count: int) -> list[int]:
    """Return drafts of which the first is wrong."""
    return [token % VOCAB + 1 for token in (rest(known, model) + [1] * count)[:count]]


def assert_answers(sim: Simulator) -> None:
    """Verify that each request that was not given up has the answer of a lone run."""
    for known in sim.requests.values():
        request = known.request
        if not known.is_cancelled:
            expected = sim.model.answer(known.prompt, request.salt, request.max_tokens)
            assert known.answer == expected
    assert all(group.num_live == 0 for group in sim.cache.stats().groups)
    assert not sim.device.states.sequences


# -- any order of events -------------------------------------------------------------------

heads = st.sampled_from([0, 4, 8, 12]).map(lambda n: HEAD[:n])
tails = st.lists(st.integers(1, VOCAB), min_size=1, max_size=10)
texts = st.tuples(heads, tails).map(lambda parts: parts[0] + parts[1])


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    tokens = draw(texts)
    if draw(st.integers(0, 2)):
        return text(tokens)
    start = draw(st.integers(0, len(tokens) - 1))
    length = draw(st.integers(1, len(tokens) - start))
    return picture(tokens, start, length, draw(st.integers(0, 1)))


@st.composite
def setups(draw: st.DrawFn) -> SimulatorSetup:
    layout = draw(st.sampled_from(list(LAYOUTS.values())))
    sizes = st.sampled_from([9, 13, 21, 65])
    num_blocks = [draw(sizes) for _ in range(max(1, len(layout.groups)))]
    grows = draw(st.booleans())
    return SimulatorSetup(
        layout=layout,
        num_blocks=num_blocks,
        max_num_blocks=[n + 6 for n in num_blocks] if grows else None,
        block_size=SIZE,
        max_slice=SLICE,
        max_context=64,
        row_exact=draw(st.booleans()),
        snapshots=draw(st.sampled_from([0, 8])),
        want_ladder=draw(st.booleans()),
        anchors=draw(st.sampled_from([(), (1, 2, 4)])),
        scheduler=SchedulerSettings(
            max_num_seqs=draw(st.sampled_from([2, 4])),
            max_batched_tokens=draw(st.sampled_from([3, 8, 16])),
            prefill_chunk_size=SLICE,
            long_prefill_tokens=SLICE,
            reserve_full_prompt=draw(st.booleans()),
            watermark_fraction=draw(st.sampled_from([0.0, 0.2])),
        ),
    )


class SimulatorMachine(RuleBasedStateMachine):
    """ST-1, ST-3, SP-1, GR-2, SC-3, SD-1: no order of events gives a token another past.

    The simulator looks at every read, slot, state, published block and plan of every step. At
    the end each request has the tokens of a lone, undisturbed run, and nothing is held.
    """

    @initialize(setup=setups(), ends=st.booleans(), spills=st.booleans())
    def start(self, setup: SimulatorSetup, ends: bool, spills: bool) -> None:
        self.sim = Simulator(setup, SimulatedModel(VOCAB, 3 if ends else None))
        self.sim.disk.spills = spills

    @property
    def unfinished(self) -> list[SimulatedRequest]:
        return [self.sim.requests[r.id] for r in self.sim.scheduler.requests]

    def pick(self, data: st.DataObject) -> SimulatedRequest:
        return data.draw(st.sampled_from(self.unfinished))

    @precondition(lambda self: len(self.unfinished) < 6)
    @rule(
        new=st.lists(st.tuples(prompts(), st.integers(1, 12)), min_size=1, max_size=2),
        salt=st.sampled_from([0, 0, 1]),
        owner=st.sampled_from(["", "a"]),
        look_ahead=st.booleans(),
    )
    def submit(
        self, new: list[tuple[Prompt, int]], salt: int, owner: str, look_ahead: bool
    ) -> None:
        for prompt, max_tokens in new:
            try:
                self.sim.submit(
                    prompt,
                    max_tokens,
                    salt=SaltDomain(salt),
                    owner=owner,
                    look_ahead=look_ahead,
                )
            except ContextLengthExceededError:
                assert len(prompt.tokens) > self.sim.cache.max_tokens

    @rule(times=st.integers(1, 5))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.sim.step()

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data(), k=st.integers(1, 5), mistake=st.integers(0, 7))
    def step_with_drafts(self, data: st.DataObject, k: int, mistake: int) -> None:
        """Every request gets drafts that are right up to a mistake."""
        for known in self.unfinished:
            drafts = (rest(known, self.sim.model) + [1] * k)[:k]
            if mistake < k:
                drafts[mistake] = drafts[mistake] % VOCAB + 1
            if data.draw(st.booleans()):
                self.sim.propose(known, drafts)
        self.sim.step()

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.sim.cancel(self.pick(data))
        self.sim.check()

    @precondition(lambda self: self.sim.disk.restoring)
    @rule(data=st.data(), lost=st.integers(0, 2))
    def arrive(self, data: st.DataObject, lost: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.sim.disk.restoring)))
        self.sim.disk.arrive(self.sim.requests[number].request, lost)

    @precondition(lambda self: self.sim.disk.restoring)
    @rule(data=st.data(), num_blocks=st.integers(0, 2))
    def arrive_partly(self, data: st.DataObject, num_blocks: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.sim.disk.restoring)))
        self.sim.disk.arrive_partly(self.sim.requests[number].request, num_blocks)

    @rule()
    def forget(self) -> None:
        self.sim.forget()

    @rule()
    def requeue(self) -> None:
        self.sim.scheduler.requeue_restoring()

    @rule(tight=st.booleans())
    def squeeze(self, tight: bool) -> None:
        self.sim.memory_is_tight = tight

    @precondition(lambda self: self.unfinished)
    @rule(happens=st.sampled_from([True, False, False, False]))
    def fail_step(self, happens: bool) -> None:
        if happens:
            self.sim.fail_step()

    def teardown(self) -> None:
        if hasattr(self, "sim"):
            self.sim.memory_is_tight = False
            self.sim.run()
            assert_answers(self.sim)


SimulatorMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
test_any_order_of_events = SimulatorMachine.TestCase


# -- drafts --------------------------------------------------------------------------------


@every_layout
@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_right_drafts_yield_more_tokens_a_step(layout: CacheLayout, k: int) -> None:
    """SP-1: the answer is that of plain decoding, in as many steps as drafts leave."""
    sim = simulator(layout)
    known = sim.submit(text(HEAD), 20, look_ahead=False)
    for _ in range(100):
        sim.propose(known, rest(known, sim.model)[:k])
        sim.step()
    verified = [row for plan in sim.plans for row in plan.rows if row.drafts]

    assert_answers(sim)
    assert sum(len(row.drafts) + 1 for row in verified) in {19, 18}
    assert all(len(row.drafts) == k for row in verified[:-1])


neighbours = st.lists(st.tuples(texts, st.integers(1, 10)), min_size=1, max_size=3)


@settings(max_examples=60)
@given(
    layout=st.sampled_from(list(LAYOUTS.values())),
    others=neighbours,
    budget=st.sampled_from([2, 3, 8, 16]),
    k=st.integers(1, 8),
)
def test_a_row_with_drafts_changes_no_neighbours_row(
    layout: CacheLayout, others: list[tuple[list[int], int]], budget: int, k: int
) -> None:
    """ST-2: drafts take the budget that is left over, so neighbours run as without them."""

    def rows_of_neighbours(k: int) -> list[list[tuple[Any, ...]]]:
        sim = simulator(layout, max_batched_tokens=budget)
        drafted = sim.submit(text(HEAD), 12, look_ahead=False)
        for tokens, max_tokens in others:
            sim.submit(text(tokens), max_tokens)
        while not sim.scheduler.is_idle or sim.in_flight is not None:
            sim.propose(drafted, wrong(drafted, sim.model, k))
            sim.step()
        assert_answers(sim)
        return [
            [attrs.astuple(attrs.evolve(row, blocks=())) for row in plan.rows if row.request]
            for plan in sim.plans
        ]

    assert rows_of_neighbours(k) == rows_of_neighbours(0)


@every_layout
def test_drafts_find_no_room_and_the_request_decodes(layout: CacheLayout) -> None:
    """SP-1: exhaustion degrades to plain decoding; nobody is preempted for drafts."""
    sim = simulator(layout, 7, reserve_full_prompt=False)
    drafted = sim.submit(text(HEAD), 12, look_ahead=False)
    sim.submit(text([5] * 10), 2)
    while not sim.scheduler.is_idle or sim.in_flight is not None:
        sim.propose(drafted, wrong(drafted, sim.model, 8))
        sim.step()

    assert_answers(sim)
    rows = [row for plan in sim.plans for row in plan.rows if row.request == 0]
    assert sim.scheduler.stats().preemptions == 0
    assert {len(row.drafts) for row in rows} >= {0, 8}


def test_only_the_request_with_drafts_waits_for_its_tokens() -> None:
    """ST-2: a neighbour that looks ahead has a row in every step."""
    sim = simulator(LAYOUTS["full"])
    drafted = sim.submit(text(HEAD), 8, look_ahead=False)
    other = sim.submit(text([5, 5]), 20)
    for _ in range(16):
        sim.propose(drafted, rest(drafted, sim.model)[:3])
        sim.step()
    decoded = [r for plan in sim.plans for r in plan.rows if r.request == other.request.id]

    assert drafted.answer is not None
    assert len(decoded) == 16
    assert all(row.on_device for row in decoded[1:])
    assert {wave.query_len for plan in sim.plans for wave in plan.waves} >= {1, 4}


# -- pictures ------------------------------------------------------------------------------

TEXT, SHOWN, OTHER = text(HEAD), picture(HEAD, 1, 3), picture(HEAD, 1, 3, number=2)


@every_layout
@pytest.mark.parametrize("asked", [TEXT, SHOWN, OTHER])
@pytest.mark.parametrize("stored", [TEXT, SHOWN, OTHER])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_prefix_is_found_under_equal_pictures_alone(
    layout: CacheLayout, stored: Prompt, asked: Prompt, on_disk: bool
) -> None:
    """ST-4, ME-1: pictures reach lookup, publication, capture and restore proposals."""
    sim = simulator(layout)
    sim.disk.eager = True
    sim.submit(stored, 2)
    sim.run()
    sim.disk.blocks.clear() if not on_disk else sim.forget()
    second = sim.submit(asked, 2)
    sim.run()

    found = 8 if stored is asked else 0
    assert second.request.cached_tokens == found
    assert second.request.restored_tokens == (found if on_disk else 0)
    assert_answers(sim)


def test_a_picture_does_not_change_the_names_of_text_before_it() -> None:
    """ST-4, ME-1: a prompt with a picture at its end finds the text in front of it."""
    sim = simulator(LAYOUTS["full"])
    sim.submit(text(HEAD), 2)
    sim.run()
    second = sim.submit(picture(HEAD, 9, 2), 2)
    sim.run()

    assert second.request.cached_tokens == 8
    assert_answers(sim)


@pytest.mark.parametrize("lost", range(3))
def test_nothing_arrives_behind_the_end_of_a_restore(lost: int) -> None:
    """SD-1: the invented disk keeps to what a restore has said."""
    sim = simulator(LAYOUTS["all"])
    sim.submit(TEXT, 2)
    sim.run()
    sim.forget()
    sim.disk.eager = False
    known = sim.submit(TEXT, 2)
    sim.step()
    sim.disk.arrive(known.request, lost)
    sim.disk.arrive_partly(known.request, 2)
    sim.step()

    assert known.request.restored_tokens == (8 if lost == 0 else 0)
    sim.run()
    assert_answers(sim)


# -- the simulator finds faults ------------------------------------------------------------


def _forget_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = PrefixChain._identity

    def without(self: PrefixChain, tokens: Any, index: int) -> Any:
        return attrs.evolve(identity(self, tokens, index), extra_keys=())

    monkeypatch.setattr(PrefixChain, "_identity", without)


def _forget_salts(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = PrefixChain._identity

    def without(self: PrefixChain, tokens: Any, index: int) -> Any:
        return attrs.evolve(identity(self, tokens, index), salt=SaltDomain(0))

    monkeypatch.setattr(PrefixChain, "_identity", without)


def _keep_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateManager, "rewind", lambda self, sequence: None)


def _keep_cursors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CacheSequence, "rewind", lambda self, num_tokens: None)


def _lose_table_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = BlockTable.take_changes
    monkeypatch.setattr(BlockTable, "take_changes", lambda self: taken(self)[:1])


def _commit_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Coordinator.commit

    def all_of_it(self: Coordinator, sequence: CacheSequence, n: int) -> None:
        sequence.tokens += [0] * max(0, sequence.cursor - len(sequence.tokens))
        commit(self, sequence, sequence.cursor - sequence.frontier)

    monkeypatch.setattr(Coordinator, "commit", all_of_it)


def _expire_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlidingWindow, "first_visible", _one_too_late)
    monkeypatch.setattr("neve.testing.simulated_device.Device._check_reads", _reads_all)


def _one_too_late(self: SlidingWindow, position: int) -> int:
    return max(0, position - self.window + 1 + SIZE)


def _reads_all(self: Any, row: Any, known: SimulatedRequest, tokens: Sequence[int]) -> None:
    """Compare what a window really sees, whatever `first_visible` says."""
    expected = self._model.contents(known.prompt, known.request.salt, tokens)
    for position in range(max(0, row.position - WINDOW + 1), row.end):
        assert self.slots.get(self._slot(row.sequence, 1, position)) == expected[position]


@pytest.mark.parametrize(
    "break_it",
    [
        _forget_pictures,
        _forget_salts,
        _keep_states,
        _keep_cursors,
        _lose_table_changes,
        _commit_drafts,
        _expire_too_much,
    ],
)
def test_a_planted_fault_is_found(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ST-1: the simulator is worth its name: each of these faults ends it."""

    def scenario() -> None:
        sim = simulator(LAYOUTS["all"])
        sim.submit(TEXT, 4)
        sim.run()
        sim.submit(SHOWN, 12)
        sim.submit(TEXT, 12, salt=SaltDomain(1))
        drafted = sim.submit(text([*HEAD, 5, 5]), 16, look_ahead=False)
        for _ in range(40):
            sim.propose(drafted, [*rest(drafted, sim.model)[:1], 9, 9])
            sim.step()
        sim.run()
        assert_answers(sim)

    scenario()
    break_it(monkeypatch)
    with pytest.raises((AssertionError, KeyError, ValueError, RuntimeError)):
        scenario()
