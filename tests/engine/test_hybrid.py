"""Prefixes of models that keep state outside their blocks, on the tiny checkpoints."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

import neve
from neve.coldtier.objects.facts import ObjectFacts, peek
from neve.coldtier.objects.format import decode, encode
from neve.coldtier.objects.keys import ColdGroup, ObjectName
from neve.kvcache.retention import LADDER_RUNGS, snapshot_ladder
from neve.testing.parity import at_once, tokens

pytestmark = pytest.mark.mlx

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
BLOCK = 16
SIDECARS = {"lfm2": "conv_state", "qwen3_5": "gdn_state", "nemotron_h": "ssm_state"}


every_family = pytest.mark.parametrize("family", SIDECARS, indirect=True)
"""For what a family's own state could break; the rest is shown on one."""


@pytest.fixture(scope="module")
def family(request: pytest.FixtureRequest) -> str:
    return getattr(request, "param", "lfm2")


@pytest.fixture(scope="module")
def flat(family: str) -> Iterator[neve.Model]:
    """The model with nothing to find: every prompt is computed from its first token on."""
    options: dict[str, Any] = {"dtype": "float32", "use_block_paged_cache": False}
    with neve.load(CHECKPOINTS / family, paged_cache_memory_mb=16, **options) as model:
        yield model


Open = Callable[..., neve.Model]


@pytest.fixture
def hot(family: str) -> Iterator[Open]:
    """Load the model; closed at the end of the test."""
    models: list[neve.Model] = []

    def make(**settings: Any) -> neve.Model:
        options: dict[str, Any] = {"dtype": "float32", "paged_cache_memory_mb": 16}
        models.append(neve.load(CHECKPOINTS / family, **(options | settings)))
        return models[-1]

    yield make
    for model in models:
        model.close()


@pytest.fixture
def cold(hot: Open, tmp_path: Path) -> Open:
    """Load with a cold tier in a folder of the test's own: another process, so to say."""

    def make(**settings: Any) -> neve.Model:
        model = hot(persist_paged_cache=True, cold_cache_dir=str(tmp_path), **settings)
        model.wait_identified()
        return model

    return make


def text(length: int, seed: int) -> list[int]:
    """Return tokens that no other seed begins with."""
    return random.Random(seed).choices(range(10, 1000), k=length)


def answer(model: neve.Model, prompt: Sequence[int], length: int = 6) -> neve.Completion:
    """Answer, and wait until what the request leaves is on disk, if it is to be."""
    completion = model.generate(list(prompt), max_tokens=length, ignore_eos=True)
    model.flush()
    return completion


def forget(model: neve.Model) -> None:
    """Drop everything from memory."""
    model._engine.call(lambda core: core.runner.lane.cache.purge())


@attrs.define
class Request:
    """A prompt and its answer."""

    prompt: list[int]
    completion: neve.Completion

    @property
    def computed(self) -> list[int]:
        """All tokens that were computed; the last one of the answer was not."""
        return self.prompt + list(self.completion.tokens[:-1])


@attrs.define
class Expected:
    """What a cache must hold after the requests so far, told from their tokens alone.

    Attributes:
        ladder: Whether prefills keep shallow boundaries too.
        requests: The requests.
        kept: Boundaries with a state, each as the tokens that it sums up.
    """

    ladder: bool = False
    requests: list[Request] = attrs.field(factory=list)
    kept: list[list[int]] = attrs.field(factory=list)

    def deepest(self, prompt: Sequence[int]) -> int:
        """Return the deepest valid boundary."""
        found = [len(p) for p in self.kept if len(p) < len(prompt) and p == prompt[: len(p)]]
        return max(found, default=0)

    def held(self, prompt: Sequence[int]) -> int:
        """Return the tokens whose blocks are in memory."""
        most = 0
        for request in self.requests:
            pairs = zip(prompt[:-1], request.computed, strict=False)
            same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            most = max(most, same // BLOCK * BLOCK)
        return most

    def miss(self, prompt: Sequence[int]) -> str | None:
        """Return why there is no deeper hit."""
        deepest = self.deepest(prompt)
        if deepest == (len(prompt) - 1) // BLOCK * BLOCK:
            return None
        lacking = "no_sidecar" if self.ladder else "no_state"
        return lacking if self.held(prompt) > deepest else "no_block"

    def note(self, request: Request) -> None:
        """Take note of what a request leaves: its prefill's rungs, and its newest state."""
        self.requests.append(request)
        cached = request.completion.usage.cached_tokens
        prompt, computed = request.prompt, request.computed
        ends = snapshot_ladder(len(prompt), cached, BLOCK, want_ladder=self.ladder)
        newest = len(computed) // BLOCK * BLOCK
        ends += [newest] if newest >= len(prompt) else []
        self.kept += [computed[:end] for end in ends]


def ask(model: neve.Model, prompt: list[int], expected: Expected) -> Request:
    """Answer, and compare what was found in memory with what must be there."""
    request = Request(prompt, answer(model, prompt))
    report = request.completion.cache_report
    found = (report.hot_tokens + report.restored_tokens, report.miss)

    assert found == (expected.deepest(prompt), expected.miss(prompt))
    expected.note(request)
    return request


def converse(model: neve.Model, expected: Expected) -> None:
    """Play a conversation that grows, an edit, a retry and four sub-conversations."""
    prompt = text(50, 0)
    for i in range(10):
        request = ask(model, prompt, expected)
        if i:  # only what has come since the last request is computed, and less than a block
            assert (
                request.completion.usage.cached_tokens
                > len(expected.requests[-2].computed) - BLOCK
            )
        prompt = request.prompt + list(request.completion.tokens) + text(9 + i, i)
    retried = ask(model, expected.requests[-1].prompt, expected)
    assert retried.completion.usage.cached_tokens > len(retried.prompt) - BLOCK - 1
    edited = list(prompt)
    edited[len(edited) // 2] = 1001
    assert 0 < ask(model, edited, expected).completion.usage.cached_tokens < len(edited) // 2
    for seed in range(100, 104):
        child = ask(model, text(50, 0) + text(30, seed), expected)
        again = child.prompt + list(child.completion.tokens) + text(9, seed + 50)
        ask(model, again, expected)


def assert_as_alone(flat: neve.Model, requests: Sequence[Request]) -> None:
    """Compare answers with those of requests that found nothing."""
    alone = at_once(
        flat, [request.prompt for request in requests], max_tokens=6, ignore_eos=True
    )

    assert tokens([request.completion for request in requests]) == tokens(alone)


# -- in memory -----------------------------------------------------------------------------


def test_every_turn_hits_at_the_deepest_valid_boundary(hot, flat):
    """GR-5: growing, edited, retried or branched, a request is hit and says why no deeper."""
    expected = Expected()
    converse(hot(), expected)

    assert {expected.miss(request.prompt) for request in expected.requests} == {None}
    assert_as_alone(flat, expected.requests)


@every_family
def test_a_prompt_that_ends_with_a_block_leaves_its_state(hot):
    """GR-5: the end of a prompt is a boundary like any other."""
    model, prompt = hot(), text(3 * BLOCK, 1)
    answer(model, prompt, 1)
    found = answer(model, prompt + text(5, 2), 1).cache_report

    assert (found.hot_tokens, found.miss) == (3 * BLOCK, None)


def test_blocks_without_their_state_are_no_hit(hot, flat):
    """GR-5: what has lost its state is computed again, and the report says so."""
    model, prompt = hot(), text(70, 1)
    answer(model, prompt)
    model._engine.call(lambda core: core.runner.lane.keeper.clear())
    again = Request(prompt, answer(model, prompt))

    assert again.completion.cache_report.hot_tokens == 0
    assert again.completion.cache_report.miss == "no_state"
    assert_as_alone(flat, [again])
    assert answer(model, prompt).cache_report.miss is None


def test_a_salt_keeps_states_apart(hot):
    """KV-9: equal prompts under two salts share no state."""
    model, prompt = hot(), text(70, 1)
    salts = ["alice", "bob", None, "alice"]
    found = [
        model.generate(prompt, max_tokens=2, cache_salt=salt).usage.cached_tokens
        for salt in salts
    ]

    assert found == [0, 0, 0, 64]


def test_after_a_failed_step_no_state_is_used(hot, flat):
    """GR-5: what the broken step may have written is forgotten."""
    model, prompt = hot(), text(70, 1)
    answer(model, prompt)

    def fail(core: Any) -> None:
        def broken(*_: Any) -> None:
            del core.runner.build
            raise RuntimeError("the device is gone")

        core.runner.build = broken

    model._engine.call(fail)
    with pytest.raises(neve.NeveError, match="the device is gone"):
        answer(model, text(20, 2))
    again = Request(prompt, answer(model, prompt))

    assert again.completion.usage.cached_tokens == 0
    assert_as_alone(flat, [again])


def test_a_small_store_of_states_costs_hits_and_nothing_else(hot, flat):
    """SD-6: with room for no state the caps of the tables hold: two, the newest among them."""
    model = hot(state_snapshot_memory_mb=0)
    requests = [Request(prompt := text(50 + 9 * i, i), answer(model, prompt)) for i in range(4)]
    num_kept = model._engine.call(lambda core: len(core.runner.lane.keeper.snapshots))
    longer = requests[-1].computed + text(9, 9)
    requests += [
        Request(prompt, answer(model, prompt)) for prompt in (longer, requests[0].prompt)
    ]

    assert num_kept == 2
    assert requests[-2].completion.usage.cached_tokens == 80
    assert requests[-1].completion.usage.cached_tokens == 0
    assert requests[-1].completion.cache_report.miss == "no_state"
    assert_as_alone(flat, requests)


def test_sub_conversations_at_once_answer_alike(hot, flat):
    """KV-2, GR-5: of prompts that share a beginning one computes it, and the others wait."""
    model, shared = hot(), text(50, 0)
    prompts = [shared + text(20 + seed, seed) for seed in range(1, 5)]
    answers = at_once(model, prompts, max_tokens=6, ignore_eos=True)
    requests = [Request(*pair) for pair in zip(prompts, answers, strict=True)]

    assert sorted(a.usage.cached_tokens for a in answers) == [0, 48, 48, 48]
    assert_as_alone(flat, requests)


# -- from disk -----------------------------------------------------------------------------


@attrs.define
class OnDisk(Expected):
    """What a store must hold: behind each request the deepest boundaries of its chain."""

    written: list[list[int]] = attrs.field(factory=list)

    def note(self, request: Request) -> None:
        """Take note of the sidecars that a request writes."""
        super().note(request)
        chain = request.computed
        on_chain = sorted({len(p) for p in self.kept if p == chain[: len(p)]})
        had_ladder = any(chain[:end] in self.written for end in on_chain[:-1])
        self.written += [chain[:end] for end in on_chain[-1 if had_ladder else -LADDER_RUNGS :]]


@every_family
def test_a_restart_changes_no_hit_and_no_token(cold, flat):
    """SD-1, SD-4, SD-7: another process ends at the deepest boundary that went to disk."""
    before = OnDisk(ladder=True)
    converse(cold(), before)
    model = cold()
    again: list[Request] = []
    for first in (before.requests[9], before.requests[11], before.requests[-1]):
        forget(model)
        again.append(Request(first.prompt, answer(model, first.prompt)))
        boundaries = [len(p) for p in before.written if p == first.prompt[: len(p)]]

        assert again[-1].completion.usage.restored_tokens == max(boundaries)
    sidecar = model.stats().sidecar
    assert (sidecar.installed, sidecar.restore_suppressed) == (3, 0)
    assert model.stats().cold.corruptions == 0
    assert_as_alone(flat, before.requests + again)


@pytest.fixture
def stored(cold: Open, tmp_path: Path) -> Request:
    """A request of 150 tokens that is on disk, with states at 32, 144 and behind."""
    return Request(prompt := text(150, 1), answer(cold(), prompt, 12))


def objects(tmp_path: Path, group: ColdGroup) -> list[Path]:
    """Return the files of a group; of sidecars the deepest boundary first."""
    paths = tmp_path.rglob("*.safetensors")
    found = [p for p in paths if (name := ObjectName.parse(p.name)) and name.group is group]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def facts(path: Path) -> ObjectFacts:
    return peek(path.read_bytes())


def boundary(path: Path) -> int:
    return int(dict(facts(path).layout.facts)["boundary_tokens"])


@pytest.fixture
def sidecars(stored: Request, family: str, tmp_path: Path) -> list[Path]:
    """The files of the states of `stored`, deepest first."""
    found = objects(tmp_path, ColdGroup(SIDECARS[family]))
    assert [boundary(path) for path in found] == [160, 144, 32]
    return found


def test_a_restored_state_is_found_in_memory_by_the_next_turn(cold, flat):
    """GR-5, CT-1: what came from disk once does not come from there again."""
    prompt = text(70, 1)
    answer(cold(), prompt)
    model = cold()
    requests = [Request(prompt, answer(model, prompt)) for _ in range(2)]
    usages = [request.completion.usage for request in requests]

    assert [(u.cached_tokens, u.restored_tokens) for u in usages] == [(64, 64), (64, 0)]
    assert_as_alone(flat, requests)


def test_memory_goes_before_the_disk(cold, stored):
    """CT-1, SD-1: the walk begins at the boundary that memory has the state of."""
    model = cold()
    short = answer(model, stored.prompt[:40])
    whole = answer(model, stored.prompt, 12)
    found = [(a.cache_report.hot_tokens, a.usage.restored_tokens) for a in (short, whole)]

    assert found == [(0, 32), (32, 112)]
    assert whole.tokens == stored.completion.tokens


def test_turns_that_restore_at_once_answer_alike(cold, stored):
    """CT-11, GR-5: whoever gets there first, each request has its own state."""
    model = cold()
    prompts = [stored.prompt, stored.prompt, stored.prompt[:100], stored.prompt + text(9, 9)]
    together = at_once(model, prompts, max_tokens=12, ignore_eos=True)
    forget(model)
    alone = [answer(model, prompt, 12) for prompt in prompts]

    assert tokens(together) == tokens(alone)
    assert together[0].tokens == stored.completion.tokens
    assert [a.usage.cached_tokens for a in together] == [144, 144, 32, 144]
    assert model.stats().sidecar.restore_suppressed == 0


def test_without_its_sidecars_a_chain_is_computed(cold, stored, sidecars):
    """SD-1: blocks alone restore nothing, and the answer is the same."""
    for path in sidecars:
        path.unlink()
    model = cold()
    again = answer(model, stored.prompt, 12)

    assert again.tokens == stored.completion.tokens
    assert (again.usage.restored_tokens, again.cache_report.miss) == (0, "no_sidecar")
    assert model.stats().cold.hits == 0
    forget(model)
    assert answer(model, stored.prompt).usage.restored_tokens == 144  # they were written anew


def test_without_the_deepest_sidecar_the_next_one_counts(cold, stored, sidecars):
    """SD-1: a policy only ever shortens what the chain proposes."""
    sidecars[1].unlink()
    model = cold()
    again = answer(model, stored.prompt, 12)

    assert again.tokens == stored.completion.tokens
    assert (again.usage.restored_tokens, again.cache_report.miss) == (32, "no_sidecar")
    assert model.stats().sidecar.installed == 1


@pytest.mark.parametrize("index", [0, 1, 5, 8])
def test_without_one_block_the_boundary_before_it_counts(cold, stored, tmp_path, index):
    """SD-1: any one block may be lost; the answer is the same."""
    objects(tmp_path, ColdGroup.KV)[-1 - index].unlink()
    again = answer(cold(), stored.prompt, 12)

    assert again.tokens == stored.completion.tokens
    assert again.usage.restored_tokens == (32 if index >= 2 else 0)


def test_a_block_that_is_lost_under_us_suppresses_the_state(cold, stored, tmp_path):
    """SD-1: state is used at just the end of its blocks; else it is thrown away and counted."""
    model = cold()
    objects(tmp_path, ColdGroup.KV)[-1 - 5].unlink()
    again = answer(model, stored.prompt, 12)

    assert again.tokens == stored.completion.tokens
    assert again.usage.restored_tokens == 0
    assert model.stats().sidecar.restore_suppressed == 1
    assert model.stats().sidecar.installed == 0


# -- sidecars that are not what they seem --------------------------------------------------


def off_by_one_token(
    found: ObjectFacts, payload: list[bytes]
) -> tuple[ObjectFacts, list[bytes]]:
    told = dict(found.layout.facts)
    told["boundary_tokens"] = str(int(told["boundary_tokens"]) - 1)
    layout = attrs.evolve(found.layout, facts=tuple(told.items()))
    return attrs.evolve(found, layout=layout), payload


def of_another_dtype(
    found: ObjectFacts, payload: list[bytes]
) -> tuple[ObjectFacts, list[bytes]]:
    halves = [attrs.evolve(tensor, dtype="BF16") for tensor in found.layout.tensors]
    layout = attrs.evolve(found.layout, tensors=halves)
    pieces = [piece[: t.num_bytes] for piece, t in zip(payload, halves, strict=True)]
    return attrs.evolve(found, layout=layout), pieces


def of_another_codec(
    found: ObjectFacts, payload: list[bytes]
) -> tuple[ObjectFacts, list[bytes]]:
    group = next(ColdGroup(g) for g in SIDECARS.values() if g != found.name.group.value)
    layout = attrs.evolve(found.layout, group=group)
    name = found.name._replace(group=group)
    return attrs.evolve(found, layout=layout, name=name), payload


def of_another_model(
    found: ObjectFacts, payload: list[bytes]
) -> tuple[ObjectFacts, list[bytes]]:
    return attrs.evolve(found, fingerprint=type(found.fingerprint)(bytes(32))), payload


@pytest.mark.parametrize(
    ("forge", "causes"),
    [
        (off_by_one_token, {"layout"}),
        (of_another_dtype, {"layout"}),
        (of_another_codec, {"layout", "format"}),
        (of_another_model, {"fingerprint"}),
    ],
)
def test_a_sidecar_that_is_another_one_is_refused(cold, stored, sidecars, forge, causes):
    """SD-7, CT-3: sound in itself, but not the expected one: it is removed and counted."""
    path = sidecars[1]
    data, found = path.read_bytes(), facts(path)
    payload = list(map(bytes, decode(data, found.name, found.fingerprint, found.layout)))
    forged, pieces = forge(found, payload)
    path.write_bytes(b"".join(encode(forged.name, forged.fingerprint, forged.layout, pieces)))
    model = cold()
    again = answer(model, stored.prompt, 12)

    assert again.tokens == stored.completion.tokens
    assert again.usage.restored_tokens == 32
    assert again.cache_report.miss in causes
    assert model.stats().cold.corruptions == 1
    assert model.stats().sidecar.installed == 1


def test_another_boundarys_sidecar_is_refused(cold, stored, sidecars):
    """SD-7, CT-3: a state of the same model and chain, but of another place, is not used."""
    sidecars[1].write_bytes(sidecars[2].read_bytes())
    model = cold()
    again = answer(model, stored.prompt, 12)

    assert again.tokens == stored.completion.tokens
    assert again.usage.restored_tokens == 32
    assert model.stats().cold.corruptions == 1


def test_a_ladder_is_written_once(cold):
    """SD-7: the first request of a chain writes its ladder, each later one a single state."""
    model, history = cold(), text(200, 1)
    written: list[int] = []
    for request in range(4):
        before = model.stats().sidecar.enqueued
        done = answer(model, history, 40)
        written.append(model.stats().sidecar.enqueued - before)
        history = [*history, *done.tokens, *text(20, 100 + request)]

    assert 2 <= written[0] <= 4
    assert written[1:] == [1, 1, 1]
