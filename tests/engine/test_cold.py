"""The cold tier of a running engine, on the tiny checkpoint."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import neve
from neve.checkpoint.identity import WeightIdentity
from neve.coldtier.store.store import ColdStore
from neve.coldtier.transfer.cost import CostModel
from neve.telemetry.turn_log import delta_fields
from neve.testing.parity import one_by_one, tokens

pytestmark = pytest.mark.mlx

PROMPT = "Once upon a time there was a miller who lived by a river. " * 12
OTHER = "The code of Max is 7319. Please remember it well, and say it. " * 12
BLOCK = 16


@pytest.fixture
def persist(load: Callable[..., neve.Model], tmp_path: Path) -> Callable[..., neve.Model]:
    """Load with a cold tier in a folder of the test's own, and wait until it is named."""

    def make(**settings: Any) -> neve.Model:
        options = {"persist_paged_cache": True, "cold_cache_dir": str(tmp_path / "cold")}
        model = load(**(options | settings))
        model.wait_identified()
        return model

    return make


def forget(model: neve.Model) -> None:
    """Drop everything from memory."""
    model._engine.call(lambda core: core.runner.lane.cache.purge())


def answer(model: neve.Model, prompt: str = PROMPT, **options: Any) -> neve.Completion:
    """Answer, and wait until the request's blocks are on disk."""
    completion = model.generate(prompt, max_tokens=4, **options)
    model.flush()
    return completion


def objects(tmp_path: Path) -> list[Path]:
    """Return the files of the store, oldest use first: leaves before their ancestors."""
    found = (tmp_path / "cold").rglob("*.safetensors")
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def hold_reads(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Make the disk wait; return what is set by the first read, and what lets all go on."""
    read, reads, release = ColdStore.read, threading.Event(), threading.Event()

    def held(self: ColdStore, *arguments: Any) -> Any:
        reads.set()
        release.wait(10)
        return read(self, *arguments)

    monkeypatch.setattr(ColdStore, "read", held)
    return reads, release


def full_blocks(completion: neve.Completion) -> int:
    """Return the prompt blocks that a second request can find."""
    return (completion.usage.prompt_tokens - 1) // BLOCK


def test_all_but_the_last_partial_block_comes_back(persist):
    """CT-1, CT-11: after one earlier request every whole block is restored, none computed."""
    first = answer(persist())
    second = answer(persist())

    assert first.cache_report.miss == "no_block"
    assert second.usage.restored_tokens == full_blocks(first) * BLOCK
    assert second.usage.cached_tokens == second.usage.restored_tokens
    assert second.cache_report.miss is None
    assert second.tokens == first.tokens


def test_memory_goes_before_the_disk(persist):
    """CT-1: the cold walk only extends what memory holds."""
    answer(persist())
    model = persist()
    shared = answer(model, PROMPT[: len(PROMPT) // 2])
    extended = answer(model)

    assert shared.usage.restored_tokens > 0
    assert 0 < extended.cache_report.hot_tokens <= shared.usage.prompt_tokens
    assert extended.usage.restored_tokens > 0
    assert extended.cache_report.miss is None


def test_a_turn_that_was_answered_from_disk_writes_nothing(persist):
    """CT-6: what is on disk already is walked over and not written again."""
    written = [
        (answer(model), model.stats().cold.bytes_written)[1] for model in (persist(), persist())
    ]

    assert written[0] > 0 == written[1]


def test_off_by_default(load, tmp_path, monkeypatch):
    """CT-1: unless somebody asks for it, nothing is written."""
    monkeypatch.setenv("MLX_COLD_CACHE_DIR", str(tmp_path / "cold"))
    model = load()
    model.generate(PROMPT, max_tokens=4)
    stats = model.stats()

    assert not model.info.persistence.persist
    assert not stats.cold.enabled
    assert stats.sidecar.capture_reached == 0  # it answers all the same
    assert not (tmp_path / "cold").exists()


def test_the_environment_may_ask_for_it(load, tmp_path, monkeypatch):
    """CT-1: `MLX_PERSIST_PAGED_CACHE` opens the tier of a family that is on the list."""
    monkeypatch.setenv("MLX_PERSIST_PAGED_CACHE", "1")
    monkeypatch.setenv("MLX_COLD_CACHE_DIR", str(tmp_path / "cold"))
    model = load()

    assert model.info.persistence.persist
    assert model.stats().cold.root == str(tmp_path / "cold" / "neve-cold-v1")


def test_the_flat_path_has_no_cold_tier(persist):
    """CT-1: what has no blocks cannot be written, and the reason says so."""
    model = persist(use_block_paged_cache=False)

    assert not model.info.persistence.persist
    assert "flat" in model.info.persistence.reason


def test_a_store_that_cannot_be_opened_stops_nobody(persist, tmp_path):
    """CT-7, CT-8: a foreign folder is left alone; inference goes on without the tier."""
    root = tmp_path / "cold" / "neve-cold-v1"
    root.mkdir(parents=True)
    (root / "letter.txt").write_text("mine")
    model = persist()
    completion = answer(model)

    assert completion.tokens
    assert not model.stats().cold.enabled
    assert "neve-cold-v1" in model.info.persistence.reason
    assert [path.name for path in root.iterdir()] == ["letter.txt"]


# -- why not more --------------------------------------------------------------------------


def test_another_salt_finds_nothing(persist):
    """KV-9: equal prompts under two salts share nothing, on disk either."""
    answer(persist(), cache_salt="alice")
    model = persist()

    assert answer(model, cache_salt="bob").cache_report.miss == "salt"
    assert answer(model).cache_report.miss == "no_block"
    assert answer(model, cache_salt="alice").cache_report.miss is None


def test_nothing_is_read_or_written_before_the_model_is_known(load, tmp_path, monkeypatch):
    """CT-4: while the weights are digested requests run without the tier, then are written."""
    known = threading.Event()
    digest = WeightIdentity.digest

    def slowly(self: WeightIdentity, *arguments: Any, **keywords: Any) -> bytes | None:
        known.wait()
        return digest(self, *arguments, **keywords)

    monkeypatch.setattr(WeightIdentity, "digest", slowly)
    model = load(persist_paged_cache=True, cold_cache_dir=str(tmp_path / "cold"))
    early = model.generate(PROMPT, max_tokens=4)

    assert early.cache_report.miss == "fingerprint"
    assert not objects(tmp_path)
    known.set()
    assert model.wait_identified()
    assert model.flush()
    assert len(objects(tmp_path)) >= full_blocks(early)


@pytest.mark.parametrize("fault", ["changes", "goes"])
def test_a_weight_file_that_changes_while_it_is_digested(load, tmp_path, monkeypatch, fault):
    """CT-4: persistence is off from then on, says why, and nothing is written."""
    known, digest = threading.Event(), WeightIdentity.digest

    def late(self: WeightIdentity, *arguments: Any, **keywords: Any) -> bytes | None:
        known.wait()
        return digest(self, *arguments, **keywords)

    monkeypatch.setattr(WeightIdentity, "digest", late)
    folder = tmp_path / "model"
    shutil.copytree(Path(__file__).parents[2] / "checkpoints" / "qwen3", folder)
    with neve.load(
        folder,
        paged_cache_memory_mb=16,
        persist_paged_cache=True,
        cold_cache_dir=str(tmp_path / "cold"),
    ) as model:
        before = model.info
        weights = folder / "model.safetensors"
        if fault == "changes":
            weights.write_bytes(weights.read_bytes()[:-4] + b"\1\2\3\4")
        else:
            weights.unlink()
        known.set()

        assert not model.wait_identified()
        assert before.persistence.persist
        assert not model.info.persistence.persist
        assert "cannot be identified" in model.info.persistence.reason
        assert str(weights) in model.info.persistence.reason
        assert model.info.tokenizer is before.tokenizer
        answer(model)
        assert not objects(tmp_path)


def test_a_turn_that_ran_out_of_its_budget_is_the_cause(persist, tmp_path):
    """CT-6: at most so many blocks are written a request; the next one goes on there."""
    model = persist(cold_capture_blocks_per_turn=5)
    answer(model)

    assert len(objects(tmp_path)) == 5
    forget(model)
    second = answer(model)
    assert second.usage.restored_tokens == 5 * BLOCK
    assert second.cache_report.miss == "budget"
    assert len(objects(tmp_path)) == 10


def test_a_full_store_is_the_cause(persist, tmp_path):
    """CT-7: what the quota refuses is not written, and the miss says so."""
    model = persist(cold_quota_gb=1e-6)
    answer(model)
    forget(model)

    assert answer(model).cache_report.miss == "quota"
    assert not objects(tmp_path)
    assert model.stats().cold.write_errors > 0


def test_a_slow_disk_is_declined_and_tried_again(persist):
    """CT-11: a restore that is predicted to be slower than to compute is not begun."""
    answer(persist())
    model = persist()

    def slow(core: Any) -> None:
        core.cold.tier.cost.restore.record(1, 1e6)
        core.cold.tier.cost.prefill.record(1000, 1e4)

    model._engine.call(slow)
    declined = answer(model)
    assert declined.cache_report.miss == "declined"
    assert declined.usage.cached_tokens == 0
    assert model.stats().cold.restore_declines == 1
    forget(model)

    def fast(core: Any) -> None:
        core.cold.tier.cost.restore.record(1e9, 1)
        core.cold.tier.cost.prefill.record(1, 1e9)

    model._engine.call(fast)
    assert answer(model).cache_report.miss is None


@pytest.mark.parametrize("at", [20, 300, -1], ids=["header", "facts", "payload"])
def test_an_unsound_block_ends_the_restore(persist, tmp_path, at):
    """CT-3: the blocks before it come back; it is removed and counted; the text is equal."""
    first = answer(persist())
    victim = objects(tmp_path)[-4]  # the fourth block of the chain
    data = bytearray(victim.read_bytes())
    data[at] ^= 1
    victim.write_bytes(data)
    model = persist()
    second = answer(model)

    assert second.tokens == first.tokens
    assert second.usage.restored_tokens == 3 * BLOCK
    assert second.cache_report.miss in {"checksum", "format", "layout"}
    assert model.stats().cold.corruptions == 1
    assert answer(persist()).cache_report.miss is None  # it was written anew


def test_a_missing_block_ends_the_restore(persist, tmp_path):
    """CT-3: a hole in the chain is a miss like any other, and is filled."""
    first = answer(persist())
    objects(tmp_path)[-4].unlink()
    second = answer(persist())

    assert second.tokens == first.tokens
    assert second.usage.restored_tokens == 3 * BLOCK
    assert answer(persist()).cache_report.miss is None


def test_other_weights_are_another_model(persist, load, checkpoint, tmp_path):
    """CT-4: one changed bit in the weights, and nothing of the old model is found."""
    answer(persist())
    copy = shutil.copytree(checkpoint, tmp_path / "finetune")
    weights = next(copy.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    options: dict[str, Any] = {
        "persist_paged_cache": True,
        "cold_cache_dir": str(tmp_path / "cold"),
    }
    with neve.load(copy, paged_cache_memory_mb=16, **options) as model:
        model.wait_identified()
        completion = answer(model)

    assert completion.cache_report.miss == "no_block"
    assert completion.usage.restored_tokens == 0


def test_a_store_that_is_deleted_under_us_is_survived(persist, tmp_path):
    """CT-7: whoever deletes the folder loses what was in it, and nothing else."""
    model = persist()
    first = answer(model)
    shutil.rmtree(tmp_path / "cold")
    forget(model)
    second = answer(model)

    assert second.tokens == first.tokens
    assert second.usage.restored_tokens == 0
    assert answer(persist()).usage.restored_tokens > 0  # the second request was written


# -- beside other requests --------------------------------------------------------------------


def test_others_decode_while_a_prefix_is_read(persist, monkeypatch):
    """CT-11: a request that waits for the disk holds nobody up."""
    answer(persist())
    model = persist()
    read, reads = ColdStore.read, threading.Event()

    def slowly(self: ColdStore, *arguments: Any) -> Any:
        reads.set()
        time.sleep(0.05)
        return read(self, *arguments)

    monkeypatch.setattr(ColdStore, "read", slowly)
    busy = model.submit(OTHER, max_tokens=400, ignore_eos=True)
    next(iter(busy))
    waiting = model.submit(PROMPT, max_tokens=4)
    assert reads.wait(10)
    before = model.stats().scheduler
    time.sleep(0.3)
    after = model.stats().scheduler
    completion = waiting.result()
    busy.cancel()

    assert before.ssd_restore_waiting == 1
    assert after.global_steps > before.global_steps
    assert completion.usage.restored_tokens > 0
    assert model.stats().scheduler.ssd_restore_wait_ms > 0
    # its pace was that of the other request's steps, and is no reason to decline the next one
    assert model._engine.call(lambda core: core.cold.tier.cost.restore.us_per_unit) is None


def test_eight_turns_with_one_prefix_read_it_once(persist):
    """KV-2, CT-11: a prefix on its way from disk is waited for, not read twice."""
    first = answer(persist())
    model = persist()
    handles = [model.submit(PROMPT, max_tokens=4) for _ in range(8)]
    answers = [handle.result() for handle in handles]

    assert {a.tokens for a in answers} == {first.tokens}
    assert model.stats().cold.hits == full_blocks(first)


def test_a_cancelled_restore_gives_everything_back(persist, monkeypatch):
    """SC-6: a request cancelled while it waits for the disk holds nothing afterwards."""
    answer(persist())
    model = persist()
    _, release = hold_reads(monkeypatch)
    handle = model.submit(PROMPT, max_tokens=4)
    while not model.stats().scheduler.ssd_restore_waiting:
        time.sleep(0.01)
    handle.cancel()
    with pytest.raises(neve.NeveError):
        handle.result()
    stats = model.stats()
    release.set()

    assert stats.scheduler.ssd_restore_waiting == 0
    assert stats.pools.groups[0].num_live == 0
    assert answer(model).tokens


def test_a_cancelled_turn_is_written_too(persist):
    """CT-6: the prefix that it computed is paid for."""
    model = persist()
    handle = model.submit(PROMPT, max_tokens=400, ignore_eos=True)
    next(iter(handle))
    handle.cancel()
    model.flush()

    assert answer(persist()).usage.restored_tokens > 0


def test_preempted_turns_spill_and_answer_alike(persist, load, monkeypatch):
    """SC-4: blocks are written before they are taken, come back, and change no token."""
    monkeypatch.setattr(CostModel, "spill_pays", lambda *_: True)
    options: dict[str, Any] = {"max_tokens": 150, "ignore_eos": True}
    crowded = persist(paged_cache_memory_mb=2, watermark_fraction=0.0, max_num_seqs=8)
    prompts = [crowded.encode(f"{i}. {PROMPT[:120]}") for i in range(8)]
    handles = [crowded.submit(prompt, **options) for prompt in prompts]
    answers = [handle.result() for handle in handles]
    scheduler = crowded.stats().scheduler
    alone = one_by_one(load(), prompts, **options)

    assert scheduler.preemptions_ssd > 0
    assert scheduler.preemptions_ssd + scheduler.preemptions_recompute == scheduler.preemptions
    assert tokens(answers) == tokens(alone)


def test_a_failed_step_loses_no_turn_that_waits_for_the_disk(persist, monkeypatch):
    """CT-11: what was written into the pools is lost with them, and is read again."""
    expected = answer(persist())
    model = persist()
    reads, release = hold_reads(monkeypatch)
    busy = model.submit(OTHER, max_tokens=400, ignore_eos=True)
    next(iter(busy))
    waiting = model.submit(PROMPT, max_tokens=4)
    assert reads.wait(10)

    def fail(core: Any) -> None:
        def broken(*_: Any) -> None:
            del core.runner.build
            raise RuntimeError("the device is gone")

        core.runner.build = broken

    model._engine.call(fail)
    with pytest.raises(neve.NeveError, match="the device is gone"):
        busy.result()
    release.set()

    assert waiting.result().tokens == expected.tokens


# -- what is written down ------------------------------------------------------------------


def test_one_line_a_turn(persist, tmp_path):
    """TE-2: the line of a request has every count of both types, its own writes included."""
    model = persist(turn_log_dir=str(tmp_path / "log"))
    completion = answer(model)
    stats = model.stats()
    model.close()
    (path,) = (tmp_path / "log").glob("*.jsonl")
    (line,) = [json.loads(text) for text in path.read_text().splitlines()]

    expected = {
        *delta_fields(type(stats.cold), "cold"),
        *delta_fields(type(stats.sidecar), "coldSidecar"),
    }
    assert expected <= line.keys()
    assert line["coldEnqueued"] == stats.cold.enqueued > 0
    assert line["promptTokens"] == completion.usage.prompt_tokens
    assert line["decodeBatch"] == 1
    assert line["miss"] == "no_block"


def test_metrics_name_the_model_and_its_counts(persist):
    """TE-4: every count of the tier stands in the text that Prometheus reads."""
    answer(persist())
    model = persist()
    answer(model)
    text = model.metrics()
    label = f'{{model="{model.info.source}"}}'

    assert f"neve_cold_hits_total{label} {model.stats().cold.hits}\n" in text
    assert f"neve_cold_enabled{label} 1\n" in text
    assert f"neve_scheduler_ssd_restores_total{label} 1\n" in text
    assert 'neve_pool_num_live{model="' in text


def test_the_trace_tells_both_walks(persist, tmp_path):
    """TE-3: how far a restore and a capture came, and why they ended."""
    path = tmp_path / "trace.log"
    for _ in range(2):
        with persist(inference_trace=True, inference_trace_file=str(path)) as model:
            answer(model)
    lines = path.read_text().splitlines()
    captures = [line for line in lines if "cold_capture_walk" in line]
    restores = [line for line in lines if "cold_restore_walk" in line]

    assert ["stop=complete" in line for line in captures] == [True, True]
    assert len(restores) == 1
    assert "hot_tokens=0 " in restores[0]
