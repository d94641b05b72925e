"""The engine on a trained tiny checkpoint: many callers, one thread, no wrong token."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import pytest

from neve.errors import (
    ContextLengthExceededError,
    EngineClosedError,
    MemoryBudgetError,
    NeveError,
    RequestCancelledError,
)

pytestmark = pytest.mark.mlx


def test_stream_yields_what_generate_returns(model, goldens):
    """UX-1: the pieces of a stream make up the completion."""
    prompt = goldens["story_short"]
    pieces = list(model.stream(prompt["ids"], max_tokens=40))
    done = model.generate(prompt["ids"], max_tokens=40)

    assert "".join(p.text for p in pieces) == done.text
    assert tuple(t for p in pieces for t in p.tokens) == done.tokens
    assert list(done.tokens) == prompt["f32"]["tokens"][:40]


def test_handle_can_be_read_by_many_threads_at_once(model, goldens):
    """UX-1: every reader of a handle sees every piece."""
    handle = model.submit(goldens["count"]["ids"], max_tokens=20)
    with ThreadPoolExecutor(4) as threads:
        texts = list(threads.map(lambda _: "".join(p.text for p in handle), range(4)))

    assert set(texts) == {handle.result().text}


def test_await_and_async_iteration(model, goldens):
    """UX-1: a handle can be awaited and iterated from an event loop."""

    async def run() -> tuple[str, str]:
        handles = [model.submit(goldens["count"]["ids"], max_tokens=12) for _ in range(3)]
        text = "".join([piece.text async for piece in handles[0]])
        done = await asyncio.gather(*handles)
        return text, done[0].text

    streamed, awaited = asyncio.run(run())

    assert streamed == awaited != ""


def test_cancelled_await_leaves_the_engine_alone(model, goldens):
    """SC-6: a task that stops waiting does not disturb the request or its neighbours."""

    async def run() -> None:
        handle = model.submit(goldens["count"]["ids"], max_tokens=30)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(handle, 0.001)
        assert len((await handle).tokens) == 30

    asyncio.run(run())


@pytest.mark.parametrize("after", [0, 1, 5])
def test_cancel_while_running(model, goldens, after):
    """SC-6: a cancelled request ends at a step boundary and gives its blocks back."""
    handle = model.submit(goldens["kjv"]["ids"], max_tokens=2000, ignore_eos=True)
    pieces = iter(handle)
    for _ in range(after):
        next(pieces)
    handle.cancel()
    with pytest.raises(RequestCancelledError):
        handle.result(30)

    assert model.stats().pools.groups[0].num_live == 0


def test_cancel_while_queued(load, goldens):
    """SC-6: a request that waits can be cancelled; the running one does not notice."""
    model = load(max_num_seqs=1)
    first = model.submit(goldens["kjv"]["ids"], max_tokens=60)
    second = model.submit(goldens["table"]["ids"], max_tokens=60)
    second.cancel()
    with pytest.raises(RequestCancelledError):
        second.result(30)

    assert list(first.result().tokens) == goldens["kjv"]["f32"]["tokens"][:60]


def test_cancel_after_the_end_changes_nothing(model, goldens):
    """SC-6: a finished request stays finished."""
    handle = model.submit(goldens["table"]["ids"], max_tokens=5)
    done = handle.result()
    handle.cancel()

    assert handle.result() is done
    assert model.generate(goldens["table"]["ids"], max_tokens=5).tokens == done.tokens


def test_leaving_a_stream_cancels_it(model, goldens):
    """UX-1: a consumer that leaves the loop stops the request."""
    stream = model.stream(goldens["kjv"]["ids"], max_tokens=2000, ignore_eos=True)
    next(stream)
    stream.close()
    for _ in range(200):
        if model.stats().scheduler.running == 0:
            break

    assert model.stats().scheduler.running == 0


def test_requests_from_many_threads(model, goldens):
    """SC-1: concurrent callers get what a lone caller gets."""
    prompts = [goldens[i] for i in ("count", "table", "kjv", "chat_short", "recall_short")] * 4
    with ThreadPoolExecutor(10) as threads:
        results = list(
            threads.map(lambda p: model.generate(p["ids"], max_tokens=p["max_new"]), prompts)
        )

    assert [list(r.tokens) for r in results] == [p["f32"]["tokens"] for p in prompts]


def test_close_fails_what_runs_and_refuses_what_comes(load, goldens):
    """A closed model answers with a typed error, and nobody waits for ever."""
    model = load()
    handle = model.submit(goldens["kjv"]["ids"], max_tokens=2000, ignore_eos=True)
    next(iter(handle))
    model.close()
    model.close()

    with pytest.raises(EngineClosedError):
        handle.result(30)
    for call in (lambda: model.submit("x"), model.stats, lambda: model.logits([1])):
        with pytest.raises(EngineClosedError):
            call()
    handle.cancel()


def test_close_from_several_threads(load):
    """Closing at once from everywhere ends once."""
    model = load()
    threads = [threading.Thread(target=model.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("fails_at", [0, 1, 4])
def test_broken_forward_fails_its_turns_and_nobody_elses(
    load, goldens, monkeypatch, fails_at, logged
):
    """A raise in a family's forward ends the step; later requests are served, exactly."""
    model = load(max_num_seqs=2)
    real, calls = type(model.info.family).forward, iter(range(1000))

    def forward(self, *args):
        if next(calls) == fails_at:
            raise RuntimeError("planted")
        return real(self, *args)

    monkeypatch.setattr(type(model.info.family), "forward", forward)
    prompts = [goldens[i] for i in ("count", "table", "kjv", "chat_short")]
    handles = [model.submit(p["ids"], max_tokens=30) for p in prompts]
    errors = [handle._future.exception(60) for handle in handles]
    failed = [str(error) for error in errors if error is not None]

    assert 1 <= len(failed) <= 2
    assert all("planted" in sentence for sentence in failed)
    (said,) = [e["error"] for e in logged if e["event"] == "engine.step.failed"]
    assert re.search(r"^RuntimeError: planted, at .*test_engine\.py:\d+ in forward$", said)
    for prompt, handle, error in zip(prompts, handles, errors, strict=True):
        if error is None:
            assert list(handle.result().tokens) == prompt["f32"]["tokens"][:30]
    assert (
        list(model.generate(prompts[0]["ids"], max_tokens=30).tokens)
        == (prompts[0]["f32"]["tokens"][:30])
    )
    assert model.stats().pools.groups[0].num_live == 0


def test_broken_device_empties_the_pools(load, goldens, monkeypatch):
    """What a failed evaluation has left in the pools is never found again."""
    from neve.engine.runner import Step

    model = load()
    prompt = goldens["recall_mid"]
    model.generate(prompt["ids"], max_tokens=2)
    real, calls = Step.start, iter(range(1000))

    def start(self):
        if next(calls) == 2:
            raise RuntimeError("planted")
        real(self)

    monkeypatch.setattr(Step, "start", start)
    with pytest.raises(NeveError, match="planted"):
        model.generate(prompt["ids"], max_tokens=10)
    done = model.generate(prompt["ids"], max_tokens=24)

    assert done.usage.cached_tokens == 0
    assert list(done.tokens) == prompt["f32"]["tokens"]


def test_preemption_changes_no_token(load, goldens):
    """SC-3: a cache too small for all makes requests come and go, with the same tokens."""
    model = load(paged_cache_memory_mb=2, watermark_fraction=0.0)
    prompts = [goldens[i] for i in ("story_short", "count", "copy", "kjv", "chat_story")]
    handles = [model.submit(p["ids"], max_tokens=p["max_new"]) for p in prompts]
    results = [h.result(120) for h in handles]

    assert model.stats().scheduler.preemptions > 0
    assert [list(r.tokens) for r in results] == [p["f32"]["tokens"] for p in prompts]
    assert sum(r.cache_report.preemptions for r in results) > 0


def test_pool_grows_before_it_evicts(load, goldens):
    """KV-6: a dynamic pool starts small, grows on demand, and keeps what it holds."""
    model = load(paged_cache_memory_mb=16, paged_cache_initial_memory_mb=1)
    before = model.stats().pools.groups[0].num_blocks
    prompt = goldens["recall_long"]
    first = model.generate(prompt["ids"], max_tokens=24)
    group = model.stats().pools.groups[0]
    second = model.generate(prompt["ids"], max_tokens=24)

    assert group.num_blocks > before
    assert (group.growths > 0, group.evictions) == (True, 0)
    assert list(first.tokens) == list(second.tokens) == prompt["f32"]["tokens"]
    assert second.usage.cached_tokens == len(prompt["ids"]) // 16 * 16


def test_pools_and_weights_stay_under_the_memory_cap(load, goldens):
    """KV-7: a cap on all arrays bounds the pool's growth; eviction does the rest."""
    pool_mb = 6
    model = load(paged_cache_memory_mb=16, paged_cache_initial_memory_mb=1, max_num_seqs=1)
    weights_gb = model.info.weight_bytes / 2**30
    capped = load(
        paged_cache_memory_mb=16,
        paged_cache_initial_memory_mb=1,
        cache_limit_gb=weights_gb + pool_mb / 1024,
        max_num_seqs=1,
    )
    for name in ("story_long", "recall_mid", "story_short", "chat_multi"):
        prompt = goldens[name]
        done = capped.generate(prompt["ids"], max_tokens=prompt["max_new"])

        assert list(done.tokens) == prompt["f32"]["tokens"]
    group = capped.stats().pools.groups[0]

    assert group.num_blocks == group.max_num_blocks <= pool_mb * 2**20 // (16 * 6 * 2 * 64 * 8)
    assert group.evictions > 0


def test_cap_below_the_weights_is_refused(load):
    """KV-7: a cap that the weights alone exceed is a typed error."""
    with pytest.raises(MemoryBudgetError, match="weights"):
        load(cache_limit_gb=0.001)


def test_prompt_that_cannot_fit_fails_on_its_handle(load):
    """SC-2: a prompt beyond the context is refused with its numbers, others go on."""
    model = load(max_context=64)
    handle = model.submit([5] * 65)
    with pytest.raises(ContextLengthExceededError) as caught:
        handle.result()

    assert (caught.value.num_tokens, caught.value.max_tokens) == (65, 64)
    assert len(model.generate([5] * 64, max_tokens=9).tokens) == 1


def test_context_ends_the_answer(load):
    """SC-2: `max_tokens=None` goes on to the end of the context."""
    model = load(max_context=64)
    done = model.generate([5] * 50, max_tokens=None, ignore_eos=True)

    assert (len(done.tokens), done.finish_reason) == (15, "length")


def test_seed_gives_the_same_tokens_alone_and_in_a_batch(model, goldens):
    """SC-7: a seeded request does not depend on who shares its batch; seed 0 is a seed."""
    ids = goldens["story_short"]["ids"]
    for seed in (0, 7):
        sampling = {"max_tokens": 24, "temperature": 1.0, "seed": seed}
        alone = model.generate(ids, **sampling)
        others = [model.submit(goldens[i]["ids"], max_tokens=30) for i in ("kjv", "count")]
        batched = model.submit(ids, **sampling)
        free = [model.submit(ids, max_tokens=24, temperature=3.0) for _ in range(2)]

        assert batched.result().tokens == alone.tokens
        assert free[0].result().tokens != free[1].result().tokens
        for handle in others:
            handle.result()


def test_logprobs_of_greedy_tokens(model, goldens):
    """Log-probabilities are the model's own, with the alternatives that were asked for."""
    ids = goldens["count"]["ids"]
    plain = model.submit(ids, max_tokens=6)
    done = model.generate(ids, max_tokens=6, logprobs=3)
    logits = model.logits([*ids, *done.tokens[:-1]])[len(ids) - 1 :]
    expected = logits - mx.logsumexp(logits, axis=-1, keepdims=True)

    assert plain.result().logprobs == ()
    for i, entry in enumerate(done.logprobs):
        assert entry.token == done.tokens[i] == entry.top[0][0]
        assert len(entry.top) == 3
        assert entry.logprob == pytest.approx(expected[i, entry.token].item(), abs=1e-4)


def test_stop_string_ends_the_text_before_it(model, goldens):
    """Nothing of a stop string is emitted, nor anything after it."""
    prompt = goldens["count"]
    whole = model.generate(prompt["ids"], max_tokens=40)
    done = model.generate(prompt["ids"], max_tokens=40, stop=["47,"])

    assert "47," in whole.text
    assert done.text == whole.text.split("47,")[0]
    assert done.finish_reason == "stop"


def test_end_of_sequence_is_a_token_without_text(model, goldens):
    """The end-of-sequence token is counted, has no text, and can be ignored."""
    prompt = goldens["chat_short"]
    done = model.generate(prompt["ids"], max_tokens=48)
    more = model.generate(prompt["ids"], max_tokens=len(done.tokens) + 5, ignore_eos=True)

    assert done.finish_reason == "stop"
    assert "<|im_end|>" not in done.text
    assert done.usage.completion_tokens == len(done.tokens)
    assert more.tokens[: len(done.tokens)] == done.tokens
    assert more.finish_reason == "length"


def test_salted_requests_share_with_equal_salts_only(model, goldens):
    """KV-9: a prefix is found under the salt that it was computed under, and no other."""
    ids = goldens["recall_mid"]["ids"]
    cached = [
        model.generate(ids, max_tokens=1, cache_salt=salt).usage.cached_tokens
        for salt in ("tenant a", "tenant b", "tenant a", "")
    ]

    assert cached == [0, 0, len(ids) // 16 * 16, 0]


def test_eight_requests_behind_one_prefix_compute_it_once(load, goldens):
    """KV-2: requests that arrive together share the blocks of their common prefix."""
    model = load()
    prefix = goldens["recall_long"]["ids"][:640]
    handles = [model.submit([*prefix, 100 + i], max_tokens=2) for i in range(8)]
    cached = [h.result().usage.cached_tokens for h in handles]

    assert cached == [0, *[640] * 7]


def test_row_exact_rows_do_not_depend_on_their_neighbours(load, goldens):
    """SC-8: in the row-exact lane logits are bit-identical to a serial run."""
    prompts = [goldens[i]["ids"] for i in ("count", "story_long", "kjv", "recall_mid")]
    alone, batched = load(row_exact=True), load(row_exact=True)
    serial = [alone.generate(p, max_tokens=12, logprobs=5) for p in prompts]
    handles = [batched.submit(p, max_tokens=12, logprobs=5) for p in prompts]

    assert batched.info.row_exact
    assert [h.result().logprobs for h in handles] == [s.logprobs for s in serial]


def test_flat_lane_gives_the_same_text(load, goldens):
    """KV-10: the flat path answers alike, shares nothing and says so."""
    model = load(use_block_paged_cache=False)
    for name in ("chat_multi", "copy_bytes", "recall_mid"):
        prompt = goldens[name]
        done = model.generate(prompt["ids"], max_tokens=prompt["max_new"])

        assert list(done.tokens) == prompt["f32"]["tokens"]
        assert done.cache_report.miss == "no_cache"
    assert model.stats().pools is None
    assert model.info.lane == "flat"


def test_waves_of_greedy_rows_are_fused(load, goldens):
    """SC-7, SC-10: a greedy wave is one argmax, and the histogram shows its width."""
    model = load()
    handles = [model.submit(goldens["count"]["ids"], max_tokens=20) for _ in range(4)]
    for handle in handles:
        handle.result()
    stats = model.stats().scheduler

    assert stats.max_batch_occupancy == 4
    assert stats.decode_batch_occupancy_hist[4] > 0
    assert stats.fused_greedy_epilogue_steps == stats.global_steps


def test_memory_is_flat_over_many_requests(load, goldens):
    """KV-5: after warm-up, requests leave no memory behind."""
    model = load()
    prompts = [goldens[i]["ids"] for i in ("count", "table", "kjv", "chat_short")]

    def round_of_requests() -> int:
        for handle in [model.submit(p, max_tokens=8) for p in prompts * 5]:
            handle.result()
        return model.stats().memory["active"]

    round_of_requests()
    first = round_of_requests()
    last = [round_of_requests() for _ in range(3)][-1]

    assert last - first < 1 << 20
