"""Models whose layers see a window, in the pools of a running engine."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

import neve
from neve.catalogue import Family
from neve.contract.cache_spec import FullAttention, SlidingWindow, layer_routes
from neve.engine.persistence import decide_persistence
from neve.kvcache.block_table import blocks_for
from neve.kvcache.stats import GroupStats
from neve.loading import examine
from neve.testing.parity import at_once, one_by_one, tokens

pytestmark = pytest.mark.mlx

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
WINDOW, BLOCK = 64, 16
LENGTHS = (WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 3)
CHUNKS = (1, 7, WINDOW, WINDOW + 5)
OPTIONS: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True}

every_family = pytest.mark.parametrize(
    "family", ["muse_glimmer", "gemma4"], indirect=True, scope="module"
)
"""Gemma 4 has aliases, and groups of unequal heads; the rest is shown on one."""

Open = Callable[..., neve.Model]


@pytest.fixture(scope="module")
def family(request: pytest.FixtureRequest) -> str:
    return getattr(request, "param", "muse_glimmer")


def load(family: str, **settings: Any) -> neve.Model:
    options: dict[str, Any] = {"dtype": "float32", "paged_cache_memory_mb": 64}
    return neve.load(CHECKPOINTS / family, **(options | settings))


@pytest.fixture(scope="module")
def flat(family: str) -> Iterator[neve.Model]:
    """The model with nothing to find: every prompt is computed from its first token on."""
    with load(family, use_block_paged_cache=False) as model:
        yield model


@pytest.fixture(scope="module")
def paged(family: str) -> Iterator[neve.Model]:
    """The model with slices as long as a window; emptied before each test by `hot`."""
    with load(family, prefill_chunk_size=WINDOW) as model:
        yield model


@pytest.fixture
def hot(paged: neve.Model) -> neve.Model:
    """The paged model with an empty cache."""
    forget(paged)
    return paged


@pytest.fixture
def opened(family: str) -> Iterator[Open]:
    """Load the model with other settings; closed at the end of the test."""
    models: list[neve.Model] = []

    def make(**settings: Any) -> neve.Model:
        models.append(load(family, **settings))
        return models[-1]

    yield make
    for model in models:
        model.close()


def text(length: int, seed: int) -> list[int]:
    """Return tokens that no other seed begins with."""
    return random.Random(seed).choices(range(10, 1000), k=length)


def forget(model: neve.Model) -> None:
    """Drop everything from memory."""
    model._engine.call(lambda core: core.runner.lane.cache.purge())


def check(model: neve.Model) -> None:
    """Fail if an equation of the cache is broken."""
    model._engine.call(lambda core: core.runner.lane.cache.check())


def window_group(model: neve.Model) -> int:
    """Return which group sees a window."""

    def find(core: Any) -> int:
        (group,) = core.runner.lane.layout.windows
        return group

    return model._engine.call(find)


def forget_windows(model: neve.Model) -> None:
    """Drop the blocks of the window's group from memory, as eviction might."""
    group = window_group(model)
    model._engine.call(lambda core: core.runner.lane.cache.groups[group].allocator.purge())


def assert_as_alone(
    flat: neve.Model, prompts: Sequence[list[int]], answers: Sequence[neve.Completion]
) -> None:
    """Compare answers with those of cold requests; a shorter one is a beginning."""
    length = max(len(answer.tokens) for answer in answers)
    unique = [list(prompt) for prompt in dict.fromkeys(map(tuple, prompts))]
    alone = at_once(flat, unique, max_tokens=length, ignore_eos=True)
    expected = dict(zip(map(tuple, unique), tokens(alone), strict=True))
    pairs = zip(prompts, answers, strict=True)

    assert tokens(answers) == [expected[tuple(p)][: len(a.tokens)] for p, a in pairs]


# -- one answer, whatever the way ----------------------------------------------------------


@every_family
def test_pages_and_contiguous_windows_answer_alike(flat, hot):
    """GR-2, TG-2: around the window's edge and past it, both lanes write the same tokens."""
    prompts = [text(length, length) for length in LENGTHS]

    assert_as_alone(flat, prompts, one_by_one(hot, prompts, **OPTIONS))
    check(hot)


@every_family
@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_prompt_may_be_cut_anywhere(flat, opened, chunk):
    """SC-1, GR-3: slices shorter than a block, of a window, or past it change no token."""
    lengths = LENGTHS[-1:] if chunk == 1 else LENGTHS
    prompts = [text(length, length) for length in lengths]
    model = opened(prefill_chunk_size=chunk)

    assert_as_alone(flat, prompts, one_by_one(model, prompts, **OPTIONS))
    check(model)


@every_family
def test_rows_of_other_lengths_share_steps(flat, hot):
    """TG-3, GR-3: eight rows before, at and behind their first window answer as alone."""
    prompts = [text(length, length) for length in (1, 16, 40, *LENGTHS, 300)]
    answers = at_once(hot, prompts, **OPTIONS)

    assert_as_alone(flat, prompts, answers)
    assert hot.stats().scheduler.max_batch_occupancy == 8
    check(hot)


SCARCE = {"both": {"muse_glimmer": 2, "gemma4": 1}, "windows": {"muse_glimmer": 4, "gemma4": 4}}
"""Groups that run short -> family -> MiB of the pools."""


@every_family
@pytest.mark.parametrize("scarce", SCARCE)
def test_preempted_rows_answer_alike(flat, opened, family, scarce):
    """SC-3, GR-2: whichever group runs short, the victim gives back both and goes on."""
    model = opened(
        prefill_chunk_size=16,
        watermark_fraction=0.0,
        reserve_full_prompt=False,
        paged_cache_memory_mb=SCARCE[scarce][family],
    )
    prompts = [text(16 + i, i) for i in range(6)]
    answers = at_once(model, prompts, max_tokens=50, ignore_eos=True)
    live = [group.num_live for group in model.stats().pools.groups]

    sizes = {group.kind: group.num_blocks for group in model.stats().pools.groups}

    assert model.stats().scheduler.preemptions > 0
    assert (sizes["full"] > 3 * sizes["window 64"]) == (scarce == "windows")
    assert live == [0, 0]
    assert_as_alone(flat, prompts, answers)
    check(model)


def test_rows_that_are_computed_one_at_a_time(flat, opened):
    """SC-8: slices that no budget cuts are counted in full when a window's pool is sized."""
    model = opened(
        row_exact=True,
        max_batched_tokens=16,
        prefill_chunk_size=128,
        max_num_seqs=2,
        paged_cache_memory_mb=8,
    )
    prompts = [text(300, 1), text(70, 2)]

    assert_as_alone(flat, prompts, at_once(model, prompts, **OPTIONS))


@pytest.mark.parametrize("size", [5, 48, 128])
def test_blocks_that_do_not_divide_the_window(flat, opened, size):
    """GR-3: a window may end within a block, and within the only one that it has."""
    model = opened(paged_block_size=size, prefill_chunk_size=WINDOW)
    prompts = [text(length, length) for length in (*LENGTHS, 300)]
    answers = one_by_one(model, prompts, **OPTIONS)
    again = one_by_one(model, prompts, **OPTIONS)

    assert_as_alone(flat, prompts, answers)
    assert tokens(again) == tokens(answers)
    assert [a.usage.cached_tokens for a in again] == [
        (len(p) - 1) // size * size for p in prompts
    ]
    check(model)


# -- what is found in memory ---------------------------------------------------------------


def common_blocks(prompt: Sequence[int], computed: Sequence[int]) -> int:
    """Return the tokens of the blocks that a prompt shares with what was computed."""
    pairs = zip(prompt[:-1], computed, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda p: p[0] == p[1], pairs)) // BLOCK * BLOCK


@every_family
def test_every_turn_hits_what_it_shares_with_any_other(flat, hot):
    """GR-7: while nothing is evicted a hit is the longest common prefix, whoever computed it.

    A conversation grows past its window, is edited in the middle, retried and branched, its
    requests under changing owners.
    """
    prompts, computed = [text(50, 0)], list[list[int]]()
    answers: list[neve.Completion] = []
    branches = [text(50, 0) + text(30, seed) for seed in range(100, 103)]
    for i in range(12):
        answers.append(hot.generate(prompts[i], owner=f"owner {i % 3}", **OPTIONS))
        expected = max((common_blocks(prompts[i], c) for c in computed), default=0)

        assert answers[i].usage.cached_tokens == expected
        computed.append(prompts[i] + list(answers[i].tokens[:-1]))
        grown = prompts[i] + list(answers[i].tokens) + text(20 + i, i)
        edited = prompts[i][: len(prompts[i]) // 2] + text(20, 50)
        later = {6: edited, 7: prompts[i - 1]} | dict(zip(range(8, 11), branches, strict=True))
        prompts.append(later.get(i, grown))
    assert_as_alone(flat, prompts[:-1], answers)
    assert max(map(len, prompts)) > 3 * WINDOW
    check(hot)


@every_family
@pytest.mark.parametrize("shared", [30, WINDOW + 10, 3 * WINDOW])
def test_two_owners_share_what_is_the_same(flat, hot, shared):
    """GR-7: of another owner's long conversation, just the common blocks are gone on from."""
    one = text(4 * WINDOW, 1)
    prompts = [one, one[:shared] + text(50, 2), one]
    answers = [hot.generate(p, owner=f"owner {i}", **OPTIONS) for i, p in enumerate(prompts)]
    found = [answer.usage.cached_tokens for answer in answers]

    assert found == [0, shared // BLOCK * BLOCK, len(one) - BLOCK]
    assert_as_alone(flat, prompts, answers)


def test_owners_that_take_turns_hit_each_other(flat, hot):
    """GR-7: two owners with one system prompt, row beside row, compute it once."""
    system = text(2 * WINDOW, 1)
    prompts = [system + text(20 + seed, seed) for seed in range(4)]
    handles = [hot.submit(p, owner=f"owner {i % 2}", **OPTIONS) for i, p in enumerate(prompts)]
    answers = [handle.result() for handle in handles]

    assert sorted(a.usage.cached_tokens for a in answers) == [0, *[len(system)] * 3]
    assert_as_alone(flat, prompts, answers)


def test_a_salt_keeps_windows_apart(hot):
    """KV-9: equal prompts under two salts share no window."""
    prompt = text(100, 1)
    salts = ["alice", "bob", None, "alice"]
    found = [hot.generate(prompt, cache_salt=s, **OPTIONS).usage.cached_tokens for s in salts]

    assert found == [0, 0, 0, 96]


@pytest.mark.parametrize("length", [40, 250])
def test_a_long_answer_leaves_its_prompt_hittable(flat, hot, length):
    """GR-4: a retry goes on from its last full block, though the window is far behind it."""
    prompt = text(length, 1)
    answers = [hot.generate(prompt, max_tokens=n, ignore_eos=True) for n in (WINDOW + 30, 8, 8)]
    found = [answer.usage.cached_tokens for answer in answers]

    assert found == [0, *[(length - 1) // BLOCK * BLOCK] * 2]
    assert [answer.cache_report.miss for answer in answers[1:]] == [None, None]
    assert_as_alone(flat, [prompt] * 3, answers)


# -- what is not -----------------------------------------------------------------------------


@every_family
def test_blocks_without_their_window_are_no_hit(flat, hot):
    """GR-7: what has lost its window is computed again, and the report says so.

    Boundaries that are held on to are a wish: the blocks decide.
    """
    prompt = text(100, 1)
    answers = [hot.generate(prompt, **OPTIONS)]
    forget_windows(hot)
    answers += [hot.generate(prompt, **OPTIONS) for _ in range(2)]
    reports = [answer.cache_report for answer in answers]

    assert [report.hot_tokens for report in reports] == [0, 0, 96]
    assert [report.miss for report in reports] == ["no_block", "no_state", None]
    assert_as_alone(flat, [prompt] * 3, answers)


def test_a_small_pool_costs_hits_and_nothing_else(flat, opened):
    """GR-3, GR-7: what eviction left of a window is a shallower boundary, or none."""
    model = opened(prefill_chunk_size=WINDOW, max_num_seqs=2, paged_cache_memory_mb=6)
    group = window_group(model)
    whole = [text(150 + 20 * i, i) for i in range(4)]
    prompts = whole + [prompt[:-10] for prompt in whole]
    answers = one_by_one(model, prompts, max_tokens=4, ignore_eos=True)
    groups = model.stats().pools.groups
    misses = [answer.cache_report.miss for answer in answers[len(whole) :]]

    assert groups[group].evictions > 0
    assert groups[1 - group].evictions == 0
    assert "no_state" in misses
    assert set(misses) <= {"no_state", None}
    assert_as_alone(flat, prompts, answers)
    check(model)


def test_after_a_failed_step_no_window_is_used(flat, hot):
    """GR-7: what the broken step may have written is forgotten in every group."""
    prompt = text(100, 1)
    hot.generate(prompt, **OPTIONS)

    def fail(core: Any) -> None:
        def broken(*_: Any) -> None:
            del core.runner.build
            raise RuntimeError("the device is gone")

        core.runner.build = broken

    hot._engine.call(fail)
    with pytest.raises(neve.NeveError, match="the device is gone"):
        hot.generate(text(20, 2), **OPTIONS)
    again = hot.generate(prompt, **OPTIONS)

    assert again.usage.cached_tokens == 0
    assert_as_alone(flat, [prompt], [again])


# -- what a row holds ------------------------------------------------------------------------


def most_resident(in_flight: int) -> int:
    """Return the bound on a row's blocks with a window, whatever its length."""
    return blocks_for(WINDOW - 1 + in_flight, BLOCK) + 1


def watched(model: neve.Model, prompt: list[int], max_tokens: int) -> list[list[GroupStats]]:
    """Answer, and return the groups' figures after each step: window's, then full."""
    seen: list[list[GroupStats]] = []
    group = window_group(model)

    def watch(core: Any) -> None:
        plan = core.scheduler.plan

        def planned() -> Any:
            rows = plan()
            groups = core.runner.lane.stats().groups
            seen.append([groups[group], groups[1 - group]])
            return rows

        core.scheduler.plan = planned

    model._engine.call(watch)
    try:
        model.generate(prompt, max_tokens=max_tokens, ignore_eos=True)
    finally:
        model._engine.call(lambda core: vars(core.scheduler).pop("plan"))
    return seen


@every_family
@pytest.mark.parametrize("length", [100, 400])
def test_a_row_holds_its_window_and_what_is_in_flight(hot, length):
    """GR-3, GR-4: a row's blocks are bounded by the window, however long it has become.

    While it prefills two slices are in flight, while it decodes two tokens.
    """
    seen = watched(hot, text(length, length), 80)
    live = [window.num_live for window, _ in seen]
    decoding = live[-40:]

    assert max(live) <= most_resident(2 * WINDOW)
    assert max(decoding) <= most_resident(2)
    assert seen[-1][1].num_live * BLOCK > length + 70  # the other group holds every block
    assert [g.num_live for g in hot.stats().pools.groups] == [0, 0]
    check(hot)


def test_a_pool_of_one_window_runs_a_long_row(flat, opened):
    """GR-4: a window's pool need not grow with the context: each block comes round again."""
    model = opened(
        prefill_chunk_size=16, max_num_seqs=1, max_batched_tokens=16, paged_cache_memory_mb=4
    )
    window = model.stats().pools.groups[window_group(model)]
    prompt = text(600, 1)
    answer = model.generate(prompt, **OPTIONS)

    assert window.num_blocks - 1 == most_resident(32)
    assert model.stats().pools.groups[window_group(model)].evictions > 30
    assert_as_alone(flat, [prompt], [answer])


# -- who may persist -------------------------------------------------------------------------


def test_a_window_within_a_block_is_not_persisted(opened, tmp_path):
    """SD-2: a window that is no multiple of the block size has no sidecar."""
    model = opened(persist_paged_cache=True, cold_cache_dir=str(tmp_path), paged_block_size=48)
    persistence = model.info.persistence

    assert not persistence.persist
    assert persistence.reason == "the window is no multiple of the block size"
    assert not list(tmp_path.rglob("*"))


def test_a_window_without_a_policy_is_not_persisted(opened, tmp_path, monkeypatch):
    """SD-1: blocks whose windows nobody can write stay in memory."""
    monkeypatch.setattr(Family, "build_sidecar_policy", lambda *_: None)
    model = opened(persist_paged_cache=True, cold_cache_dir=str(tmp_path))
    persistence = model.info.persistence

    assert not persistence.persist
    assert persistence.reason == "the family keeps state that no sidecar holds"
    assert not list(tmp_path.rglob("*"))


def test_contiguous_windows_are_not_persisted(opened, tmp_path):
    """SD-8: the flat lane keeps windows too, and leaves nothing behind."""
    model = opened(
        persist_paged_cache=True, cold_cache_dir=str(tmp_path), use_block_paged_cache=False
    )

    assert not model.info.persistence.persist
    assert "flat path" in model.info.persistence.reason


def test_windows_of_several_kinds_are_not_persisted(tmp_path):
    """SD-2, FW-4: such a model loads and answers; the tier is off, and says why."""
    path = CHECKPOINTS / "muse_glimmer"
    examined = examine(path, persist_paged_cache=True, cold_cache_dir=str(tmp_path))
    kinds = [SlidingWindow(64, 1, 8), SlidingWindow(128, 1, 8), FullAttention(1, 8)]
    subject = attrs.evolve(examined.subject, layout=layer_routes(kinds))
    decision = decide_persistence(subject, examined.settings.cold, paged=True)

    assert not decision.persist
    assert "windows of one kind" in decision.reason
