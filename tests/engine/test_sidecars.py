"""Windows on disk: what is written behind a prefix, and what comes back with it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from safetensors import safe_open

import neve
from neve.coldtier.objects.facts import ObjectFacts, peek
from neve.coldtier.objects.format import decode, encode
from neve.coldtier.objects.keys import ColdGroup, ObjectName
from neve.coldtier.transfer.cost import CostModel
from neve.testing.parity import at_once, tokens

pytestmark = pytest.mark.mlx

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
WINDOW, BLOCK = 64, 16
LENGTHS = (WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 3)
ANCHORS = {"muse_glimmer": [16, 64, 256], "gemma4": [64, 256], "gemma4_moe": [64, 256]}
GEOMETRY = {"muse_glimmer": (6, 2, 64), "gemma4": (5, 1, 64), "gemma4_moe": (4, 2, 64)}
"""Family -> sliding layers that own their storage, key heads, width of a key and a value."""

every_family = pytest.mark.parametrize(
    "family", ["muse_glimmer", "gemma4"], indirect=True, scope="module"
)
"""Gemma 4 has aliases, and groups of unequal heads; the rest is shown on one."""

Open = Callable[..., neve.Model]


@pytest.fixture(scope="module")
def family(request: pytest.FixtureRequest) -> str:
    return getattr(request, "param", "muse_glimmer")


def load(family: str, **settings: Any) -> neve.Model:
    options: dict[str, Any] = {
        "dtype": "float32",
        "prefill_chunk_size": WINDOW,
        "paged_cache_memory_mb": 32,
    }
    return neve.load(CHECKPOINTS / family, **(options | settings))


@pytest.fixture(scope="module")
def flat(family: str) -> Iterator[neve.Model]:
    """The model without persistence and with nothing to find in memory."""
    with load(family, use_block_paged_cache=False) as model:
        yield model


@pytest.fixture(autouse=True)
def _always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore what is there, however busy the machine is."""
    monkeypatch.setattr(CostModel, "restore_pays", lambda *_: True)


@pytest.fixture
def cold(family: str, tmp_path: Path) -> Iterator[Open]:
    """Load with a cold tier in a folder of the test's own: another process, so to say."""
    models: list[neve.Model] = []

    def make(**settings: Any) -> neve.Model:
        options: dict[str, Any] = {"cold_cache_dir": str(tmp_path), "cold_min_free_gb": 0.0}
        models.append(load(family, persist_paged_cache=True, **(options | settings)))
        models[-1].wait_identified()
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


def answer(model: neve.Model, prompt: Sequence[int], length: int = 6) -> neve.Completion:
    """Answer, and wait until what the request leaves is on disk, if it is to be."""
    completion = model.generate(list(prompt), max_tokens=length, ignore_eos=True)
    model.flush()
    return completion


def whole_blocks(num_tokens: int) -> int:
    return num_tokens // BLOCK * BLOCK


def events(trace: Path, name: str) -> list[dict[str, str]]:
    """Return the values of the trace's events of one name."""
    lines = [line.split() for line in trace.read_text().splitlines()]
    return [
        dict(word.split("=", 1) for word in words[2:]) for words in lines if words[1] == name
    ]


def slices(model: neve.Model) -> list[tuple[int, int]]:
    """Return a list that will hold position and length of each row that is computed."""
    rows: list[tuple[int, int]] = []

    def watch(core: Any) -> None:
        build = core.runner.build

        def built(plan: Any, *others: Any) -> Any:
            rows.extend((row.position, row.length) for row in plan.rows)
            return build(plan, *others)

        core.runner.build = built

    model._engine.call(watch)
    return rows


# -- a restart changes nothing -------------------------------------------------------------


@attrs.define
class OnDisk:
    """What a store must hold after the requests so far, told from their tokens alone.

    Attributes:
        anchors: Boundaries that every prompt shares.
        chains: What was computed for each request, in whole blocks.
        written: Boundaries with a sidecar, each as the tokens up to there.
    """

    anchors: Sequence[int]
    chains: list[list[int]] = attrs.field(factory=list)
    written: list[list[int]] = attrs.field(factory=list)

    def note(self, prompt: list[int], completion: neve.Completion) -> None:
        """Take note of what a request writes: its end, and the anchors before it."""
        computed = prompt + list(completion.tokens[:-1])  # the last one never is
        chain = computed[: whole_blocks(len(computed))]
        self.chains.append(chain)
        shallow = [anchor for anchor in self.anchors if anchor < len(chain)]
        self.written += [chain[:end] for end in [*shallow, len(chain)] if end]

    def deepest(self, prompt: list[int]) -> int:
        """Return where a prompt's restore ends."""
        usable = prompt[: whole_blocks(len(prompt) - 1)]
        found = [len(p) for p in self.written if p == usable[: len(p)]]
        return max(found, default=0)

    def miss(self, prompt: list[int]) -> str | None:
        """Return why it does not end later."""
        usable = prompt[: whole_blocks(len(prompt) - 1)]
        deepest = self.deepest(prompt)
        if deepest == len(usable):
            return None
        behind = usable[: deepest + BLOCK]
        blocks_are_there = any(chain[: len(behind)] == behind for chain in self.chains)
        return "no_sidecar" if blocks_are_there else "no_block"


@every_family
def test_a_restart_goes_on_where_the_turn_ended(cold, flat, family, tmp_path):
    """SD-1, TG-4: below the window and past it, a restore installs its window and no more runs.

    Nothing is replayed: the first token that is computed is the one behind the boundary.
    """
    store, prompts = OnDisk(ANCHORS[family]), list[list[int]]()
    first = cold()
    for length in (30, *LENGTHS):
        prompt = text(length, length)
        completion = answer(first, prompt)
        store.note(prompt, completion)
        prompts.append(prompt + list(completion.tokens) + text(20, length + 1))
    trace = tmp_path / "trace"
    model = cold(inference_trace=True, inference_trace_file=str(trace))
    computed = slices(model)
    expected = [32, 64, 64, 64, 128]
    assert [store.deepest(prompt) for prompt in prompts] == expected

    for prompt, boundary in zip(prompts, expected, strict=True):
        del computed[:]
        again = answer(model, prompt)
        usage, report = again.usage, again.cache_report

        assert (usage.cached_tokens, usage.restored_tokens) == (boundary, boundary)
        assert report.miss == store.miss(prompt)
        assert computed[0][0] == boundary
        assert sum(n for p, n in computed if p < len(prompt)) == len(prompt) - boundary
        assert again.tokens == answer(flat, prompt).tokens
    installed = [int(event["boundary"]) for event in events(trace, "cold_sidecar_install")]
    admitted = [int(event["restored_tokens"]) for event in events(trace, "turn_admitted")]
    assert installed == admitted == expected
    assert model.stats().sidecar.installed == len(expected)
    assert model.stats().sidecar.restore_suppressed == 0
    assert model.stats().cold.corruptions == 0


@every_family
def test_the_same_prompt_again_ends_at_an_anchor(cold, flat, family):
    """SD-1, SD-5: where a request ends past the prompt, a boundary of the grid counts."""
    store, first = OnDisk(ANCHORS[family]), cold()
    prompts = [text(length, length) for length in LENGTHS]
    for prompt in prompts:
        store.note(prompt, answer(first, prompt))
    model = cold()
    num_installed = 0
    for prompt in prompts:
        again = answer(model, prompt)
        num_installed += again.usage.restored_tokens > 0

        assert again.usage.restored_tokens == store.deepest(prompt)
        assert again.cache_report.miss == store.miss(prompt)
        assert model.stats().sidecar.installed == num_installed
        assert again.tokens == answer(flat, prompt).tokens


@every_family
def test_a_conversation_goes_on_after_each_restart(cold, flat, family):
    """SD-1, SD-7: a request writes one window at its end, and each anchor once for all."""
    store, prompt = OnDisk(ANCHORS[family]), text(50, 0)
    for request in range(5):
        with cold() as model:
            completion = answer(model, prompt)
            enqueued = model.stats().sidecar.enqueued
            known = len({tuple(p) for p in store.written})
            assert completion.usage.restored_tokens == store.deepest(prompt)

            store.note(prompt, completion)
            assert enqueued == len({tuple(p) for p in store.written}) - known
            assert completion.tokens == answer(flat, prompt).tokens
        prompt = prompt + list(completion.tokens) + text(25 + request, request)


def test_every_cut_of_the_prefill_writes_the_same_anchors(cold, family, tmp_path):
    """SD-5: no prefill is split for an anchor, and slices of any length leave the same ones."""
    boundaries: list[list[int]] = []
    for chunk in (7, WINDOW, WINDOW + 5, 2048):
        folder = tmp_path / str(chunk)
        folder.mkdir()
        model = cold(
            cold_cache_dir=str(folder), prefill_chunk_size=chunk, paged_cache_memory_mb=64
        )
        computed = slices(model)
        answer(model, text(300, 1))
        boundaries.append(sorted(map(boundary, objects(folder))))

        assert [n for p, n in computed if p < 300][:1] == [min(chunk, 300)]
    assert boundaries == [[16, 64, 256, 304]] * 4


# -- what is on disk -----------------------------------------------------------------------


def objects(folder: Path, group: ColdGroup = ColdGroup.SLIDING_WINDOW) -> list[Path]:
    """Return the files of a group; of sidecars the deepest boundary first."""
    paths = folder.rglob("*.safetensors")
    found = [p for p in paths if (name := ObjectName.parse(p.name)) and name.group is group]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def facts(path: Path) -> ObjectFacts:
    return peek(path.read_bytes())


def boundary(path: Path) -> int:
    return int(dict(facts(path).layout.facts)["boundary_tokens"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", GEOMETRY, indirect=True, scope="module")
def test_a_sidecar_has_the_window_of_each_sliding_layer(cold, family, tmp_path, dtype):
    """SD-2, SD-3: keys and values `[1, Hk, min(b, w), D]` of layers that own their storage.

    In the dtype of the cache; aliases have none; the safetensors library reads them.
    """
    with cold(dtype=dtype) as model:
        answer(model, text(150, 1), 12)
    num_layers, heads, width = GEOMETRY[family]
    found = {boundary(path): path for path in objects(tmp_path)}
    assert sorted(found) == [*(a for a in ANCHORS[family] if a < 160), 160]

    for end, path in found.items():
        with safe_open(path, "numpy") as file:
            shapes = {
                name: (tuple(part.get_shape()), part.get_dtype())
                for name in file.keys()  # noqa: SIM118  it is no mapping
                for part in [file.get_slice(name)]
            }
        shape = ((1, heads, min(end, WINDOW), width), {"float32": "F32"}.get(dtype, "BF16"))
        names = [f"layer.{i}.{part}" for i in range(num_layers) for part in ("keys", "values")]

        assert shapes == dict.fromkeys(names, shape)


def test_a_shared_beginning_is_written_once(cold, tmp_path):
    """SD-5: prompts that begin alike have one object for an anchor between them."""
    model, shared = cold(), text(100, 0)
    for seed in range(1, 4):
        answer(model, shared + text(60 + 16 * seed, seed))
    boundaries = sorted(map(boundary, objects(tmp_path)))

    assert boundaries == [16, 64, 176, 192, 208]


# -- what is missing or damaged ------------------------------------------------------------


@attrs.frozen
class Stored:
    """A request that is on disk, and the prompt that goes on from its end.

    Attributes:
        prompt: What is asked in another process.
        expected: The answer, computed without a cache.
        sidecars: Files of the windows, deepest first: at 160, at 64, and at 16.
        anchor: The deepest boundary besides the end.
    """

    prompt: list[int]
    expected: tuple[int, ...]
    sidecars: list[Path]
    anchor: int = 64


@pytest.fixture
def stored(cold: Open, flat: neve.Model, tmp_path: Path) -> Stored:
    """A request of 161 tokens, ten blocks of them on disk."""
    first = text(150, 1)
    with cold() as model:
        completion = answer(model, first, 12)
    prompt = first + list(completion.tokens) + text(30, 2)
    found = objects(tmp_path)
    assert [boundary(path) for path in found] == [160, 64, 16][: len(found)]
    return Stored(prompt, answer(flat, prompt).tokens, found)


def assert_lands(
    model: neve.Model, stored: Stored, boundary: int, *, misses: set[str], corruptions: int = 0
) -> None:
    """Ask, and fail unless the answer is right and the restore ends where it must."""
    again = answer(model, stored.prompt)
    stats = model.stats()

    assert again.tokens == stored.expected
    assert again.usage.restored_tokens == boundary
    assert stats.sidecar.installed == (boundary > 0)
    assert again.cache_report.miss in misses
    assert stats.cold.corruptions == corruptions


@every_family
def test_a_whole_store_gives_the_deepest_boundary(cold, stored):
    """SD-1: what the tests below damage is sound."""
    assert_lands(cold(), stored, 160, misses={"no_block"})


@every_family
def test_without_sidecars_a_prefix_is_computed(cold, stored, tmp_path):
    """SD-1, SD-9: blocks alone restore nothing; the windows are computed and written anew."""
    for path in stored.sidecars:
        path.unlink()
    model = cold()

    assert_lands(model, stored, 0, misses={"no_sidecar"})
    assert model.stats().cold.hits == 0
    assert sorted(map(boundary, objects(tmp_path)))[-1] == 192
    forget(model)
    assert answer(model, stored.prompt).usage.restored_tokens == 64


@every_family
def test_without_the_deepest_sidecar_the_next_one_counts(cold, stored):
    """SD-1: a policy only ever shortens what the chain proposes."""
    stored.sidecars[0].unlink()

    assert_lands(cold(), stored, stored.anchor, misses={"no_sidecar"})


@every_family
@pytest.mark.parametrize("index", [0, 1, 4, 9])
def test_without_one_block_the_boundary_before_it_counts(cold, stored, family, tmp_path, index):
    """SD-1: any one block of the full group may be lost; the answer is the same."""
    objects(tmp_path, ColdGroup.KV)[-1 - index].unlink()
    reachable = [b for b in ANCHORS[family] if b <= index * BLOCK]

    assert_lands(cold(), stored, max(reachable, default=0), misses={"no_block", "no_sidecar"})


def test_a_block_that_is_lost_under_us_suppresses_the_window(cold, stored, tmp_path):
    """SD-1: a window is used at just the end of its blocks; else it is thrown away, counted."""
    model = cold()
    objects(tmp_path, ColdGroup.KV)[-1 - 5].unlink()

    assert_lands(model, stored, 0, misses={"no_block"})
    assert model.stats().sidecar.restore_suppressed == 1


def cut(path: Path, _: Stored) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path, _: Stored) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(bytes(data))


def empty(path: Path, _: Stored) -> None:
    path.write_bytes(b"")


def another_boundary(path: Path, stored: Stored) -> None:
    path.write_bytes(stored.sidecars[1].read_bytes())


def resigned(path: Path, change: Callable[[ObjectFacts], ObjectFacts]) -> None:
    """Put a sound object in the place of another one, with other facts and the same bytes."""
    data, found = path.read_bytes(), facts(path)
    payload = list(map(bytes, decode(data, found.name, found.fingerprint, found.layout)))
    forged = change(found)
    layout = forged.layout
    pieces = [piece[: t.num_bytes] for piece, t in zip(payload, layout.tensors, strict=True)]
    path.write_bytes(b"".join(encode(forged.name, forged.fingerprint, layout, pieces)))


def another_dtype(path: Path, _: Stored) -> None:
    def change(found: ObjectFacts) -> ObjectFacts:
        halves = [attrs.evolve(tensor, dtype="BF16") for tensor in found.layout.tensors]
        return attrs.evolve(found, layout=attrs.evolve(found.layout, tensors=halves))

    resigned(path, change)


def another_model(path: Path, _: Stored) -> None:
    def change(found: ObjectFacts) -> ObjectFacts:
        return attrs.evolve(found, fingerprint=type(found.fingerprint)(bytes(32)))

    resigned(path, change)


@pytest.mark.parametrize(
    "damage", [cut, flip, empty, another_boundary, another_dtype, another_model]
)
def test_a_sidecar_that_is_not_the_expected_one_is_refused(cold, stored, damage):
    """SD-7, CT-3: damaged, or another place's, dtype's or model's: removed and counted."""
    path = stored.sidecars[0]
    damage(path, stored)
    causes = {"checksum", "format", "layout", "fingerprint"}

    assert_lands(cold(), stored, stored.anchor, misses=causes, corruptions=1)


def test_of_two_damaged_sidecars_both_are_counted(cold, stored):
    """SD-1, CT-3: the restore goes on down to the next sound one."""
    for path in stored.sidecars[:2]:
        flip(path, stored)

    assert_lands(cold(), stored, 16, misses={"checksum"}, corruptions=2)


# -- memory and disk together --------------------------------------------------------------


@every_family
@pytest.mark.parametrize("held", [40, 100, 150])
def test_the_disk_goes_on_where_memory_ends(cold, flat, stored, held):
    """CT-1, GR-7: what memory has of a window stays; only the blocks behind it are written."""
    model = cold()
    prompts = [stored.prompt[:held], stored.prompt]
    answers = [answer(model, prompt) for prompt in prompts]
    reports = [a.cache_report for a in answers]
    in_memory = whole_blocks(held)

    assert reports[1].hot_tokens == in_memory
    assert reports[1].restored_tokens == 160 - in_memory
    assert answers[0].tokens == answer(flat, prompts[0]).tokens
    assert answers[1].tokens == stored.expected
    model._engine.call(lambda core: core.runner.lane.cache.check())


@every_family
def test_a_restored_window_is_found_in_memory_by_the_next_turn(cold, stored):
    """CT-1: what came from disk once does not come from there again."""
    model = cold()
    usages = [answer(model, stored.prompt).usage for _ in range(2)]

    assert [(u.cached_tokens, u.restored_tokens) for u in usages] == [(160, 160), (176, 0)]
    assert model.stats().sidecar.installed == 1


def test_turns_that_restore_at_once_answer_alike(cold, flat, stored):
    """CT-11, GR-2: whoever gets there first, each request has a window of its own."""
    model = cold()
    prompts = [
        stored.prompt,
        stored.prompt[:100] + text(40, 5),
        text(90, 6),
        stored.prompt[:170],
        stored.prompt,
    ]
    together = at_once(model, prompts, max_tokens=6, ignore_eos=True)
    alone = [answer(flat, prompt) for prompt in prompts]

    assert tokens(together) == tokens(alone)
    assert together[0].usage.cached_tokens == 160
    assert model.stats().sidecar.restore_suppressed == 0
    model._engine.call(lambda core: core.runner.lane.cache.check())


def test_a_restore_that_is_cancelled_leaves_nothing(cold, stored):
    """SC-6: blocks held for a window are given back with the rest."""
    model = cold()
    handles = [model.submit(stored.prompt, max_tokens=6) for _ in range(3)]
    for handle in handles[:2]:
        handle.cancel()
    last = handles[2].result()

    assert last.tokens == stored.expected
    assert [group.num_live for group in model.stats().pools.groups] == [0, 0]
    model._engine.call(lambda core: core.runner.lane.cache.check())


def test_a_window_that_memory_lost_comes_from_disk(cold, stored):
    """CT-1, SD-1: blocks in memory without their window are restored from where they can be."""
    model = cold()
    answer(model, stored.prompt)

    def lose(core: Any) -> None:
        lane = core.runner.lane
        lane.cache.groups[lane.layout.windows[0]].allocator.purge()

    model._engine.call(lose)
    again = answer(model, stored.prompt)
    stats = model.stats()

    assert again.tokens == stored.expected
    assert again.cache_report.hot_tokens == 0
    assert (again.usage.restored_tokens, stats.sidecar.installed) == (160, 2)
    model._engine.call(lambda core: core.runner.lane.cache.check())


# -- another process -----------------------------------------------------------------------

PROCESS = """
import json, sys, neve
from neve.coldtier.transfer.cost import CostModel
CostModel.restore_pays = lambda *_: True  # however busy the machine is
path, prompts, folder = json.loads(sys.argv[1])
with neve.load(path, dtype="float32", prefill_chunk_size=64, paged_cache_memory_mb=32,
               persist_paged_cache=True, cold_cache_dir=folder, cold_min_free_gb=0.0) as model:
    model.wait_identified()
    answers = [model.generate(p, max_tokens=6, ignore_eos=True) for p in prompts]
    installed = model.stats().sidecar.installed
print(json.dumps([[[a.tokens, a.usage.restored_tokens] for a in answers], installed]))
"""


def test_a_prompt_that_parts_early_lands_on_a_shallower_anchor(cold, flat, family, tmp_path):
    """TG-1, SD-5: in another process a divergent prompt restores up to an anchor before it."""
    first = text(300, 1)
    answer(cold(), first)
    prompts = [first[:shared] + text(40, shared) for shared in (270, 200, 30)]
    arguments = [str(CHECKPOINTS / family), prompts, str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    answers, installed = json.loads(done.stdout)
    alone = [list(answer(flat, prompt).tokens) for prompt in prompts]

    assert [written for written, _ in answers] == alone
    # where the third one parts, memory has the window by then
    assert [restored for _, restored in answers] == [256, 64, 0]
    assert installed == 2
