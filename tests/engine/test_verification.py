"""Drafts that are right or wrong on order, against plain decoding: tokens, pages and states."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np
import pytest
from toy_bench import (
    LAYOUTS,
    VOCAB,
    Bench,
    MakeLane,
    contents,
    flat,
    make_bench,
    paged,
)

from neve.contract.cache_spec import CacheLayout
from neve.ids import RequestId
from neve.sampling.params import SamplingParams
from neve.scheduler.request import Request

pytestmark = pytest.mark.mlx

every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
both_lanes = pytest.mark.parametrize("make_lane", [paged, flat])

Pattern: TypeAlias = tuple[bool, ...]
"""For each draft of a round whether it is the token that plain decoding draws."""

TRUTHS = (True, False)
SHORT: list[Pattern] = [p for k in (1, 2, 3) for p in itertools.product(TRUTHS, repeat=k)]
LONG: list[Pattern] = [
    (True,) * 8,
    (True,) * 7 + (False,),
    (False,) + (True,) * 7,
    (True,) * 4 + (False,) + (True,) * 3,
    (True,) * 5,
    (True, True, False, False, True, True),
]
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "sampled": SamplingParams(
        temperature=0.9, seed=5, top_k=20, repetition_penalty=1.2, frequency_penalty=0.3
    ),
}


@attrs.frozen(eq=False)
class Plain:
    """What plain decoding of one request leaves.

    Attributes:
        tokens: Prompt and answer.
        contents: Committed positions -> what the next token sees, layer by layer.
    """

    tokens: list[int]
    contents: dict[int, list[np.ndarray]]


@functools.cache
def plain(
    kind: str, make_lane: MakeLane, prompt: tuple[int, ...], max_tokens: int, params: str
) -> Plain:
    """Decode one request alone, one token a step."""
    bench, seen = make_bench(LAYOUTS[kind], make_lane), dict[int, list[np.ndarray]]()

    def look(request: Request) -> None:
        seen[request.sequence.frontier] = contents(bench.lane, request)

    bench.settled = look
    bench.submit(prompt, max_tokens, params=PARAMS[params], look_ahead=False)
    return Plain(bench.run()[0], seen)


def kind_of(layout: CacheLayout) -> str:
    return next(kind for kind, known in LAYOUTS.items() if known is layout)


@attrs.define(eq=False)
class Verified:
    """Requests whose drafts follow a script; each settled row is compared with plain decoding.

    Attributes:
        bench: What runs.
        scripts: Request -> the patterns of its rounds.
        expected: Request -> what plain decoding leaves.
        num_compared: Settled rows that were compared.
    """

    bench: Bench
    scripts: dict[RequestId, Sequence[Pattern]] = attrs.field(factory=dict)
    expected: dict[RequestId, Plain] = attrs.field(factory=dict)
    num_compared: int = 0

    def __attrs_post_init__(self) -> None:
        self.bench.drafter, self.bench.settled = self.drafts, self.compare

    def rounds(self, request: Request) -> list[int]:
        """Return the number of drafts of each round so far."""
        rows = [row for step in self.bench.steps for row in step.plan.rows]
        return [len(r.drafts) for r in rows if r.request == request.id and r.drafts]

    def drafts(self, request: Request) -> list[int]:
        """Return the drafts that the script wants next; none once it has ended."""
        script, done = self.scripts.get(request.id, ()), len(self.rounds(request))
        if done == len(script):
            return []
        first = len(request.tokens)
        right = self.expected[request.id].tokens[first:]
        return [
            token if is_right else (token + 1) % VOCAB
            for token, is_right in zip(right, script[done], strict=False)
        ]

    def compare(self, request: Request) -> None:
        """Compare what a request's next token sees with what plain decoding has left."""
        expected = self.expected.get(request.id)
        if expected is None or request.sequence.frontier not in expected.contents:
            return
        found = contents(self.bench.lane, request)
        for new, old in zip(found, expected.contents[request.sequence.frontier], strict=True):
            np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-6)
        assert request.sequence.cursor == request.sequence.frontier
        self.num_compared += 1

    def submit(
        self,
        layout: CacheLayout,
        make_lane: MakeLane,
        script: Sequence[Pattern],
        max_tokens: int,
        prompt: Sequence[int] = tuple(PROMPT),
        params: str = "greedy",
    ) -> Request:
        """Queue a request whose drafts follow a script."""
        request = self.bench.submit(prompt, max_tokens, params=PARAMS[params], look_ahead=False)
        self.scripts[request.id] = script
        self.expected[request.id] = plain(
            kind_of(layout), make_lane, tuple(prompt), max_tokens, params
        )
        return request

    def run(self) -> None:
        """Run to the end and compare the tokens."""
        done = self.bench.run()
        for number, expected in self.expected.items():
            assert done[number] == expected.tokens


@every_layout
@both_lanes
@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("script", [SHORT, SHORT[::-1], LONG], ids=["short", "back", "long"])
def test_every_pattern_leaves_what_plain_decoding_leaves(
    layout: CacheLayout, make_lane: MakeLane, params: str, script: list[Pattern]
) -> None:
    """SP-1, ST-5: tokens, keys, values and states, whatever was accepted and rejected."""
    verified = Verified(make_bench(layout, make_lane))
    request = verified.submit(layout, make_lane, script, 60, params=params)
    verified.run()

    assert verified.rounds(request) == [len(pattern) for pattern in script]
    assert verified.num_compared > len(script)


@every_layout
@both_lanes
@pytest.mark.parametrize("length", range(1, 10))
def test_rejection_at_every_offset_of_a_block(
    layout: CacheLayout, make_lane: MakeLane, length: int
) -> None:
    """SP-1: a rewind across the end of a block, and of a window, keeps what lies before."""
    verified = Verified(make_bench(layout, make_lane))
    script: list[Pattern] = [(True, True, False), (False,) * 5, (True,) * 3]
    verified.submit(layout, make_lane, script, 24, prompt=PROMPT[:length])
    verified.run()

    assert verified.num_compared > 0


@every_layout
@both_lanes
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="roomy"),
        pytest.param({"max_batched_tokens": 6, "prefill_chunk_size": 4}, id="small slices"),
        pytest.param({"row_exact": True}, id="row exact"),
        pytest.param(
            {"num_blocks": 25, "reserve_full_prompt": False, "watermark_fraction": 0.0},
            id="preempted",
        ),
    ],
)
def test_rows_with_and_without_drafts_share_steps(
    layout: CacheLayout, make_lane: MakeLane, options: dict[str, Any]
) -> None:
    """ST-2, SP-1: waves of several lengths and slices in one step; all answer as if alone."""
    verified = Verified(make_bench(layout, make_lane, **options))
    verified.submit(layout, make_lane, SHORT, 40)
    verified.submit(layout, make_lane, LONG, 40, prompt=[9, 8], params="sampled")
    others = [([5], 30), (list(range(1, 24)), 12)]
    for prompt, max_tokens in others:
        verified.bench.submit(prompt, max_tokens)
    verified.run()
    kind, steps = kind_of(layout), [step.plan for step in verified.bench.steps]

    for number, (prompt, max_tokens) in enumerate(others, 2):
        expected = plain(kind, make_lane, tuple(prompt), max_tokens, "greedy")
        assert verified.bench.done[number] == expected.tokens
    assert any(len(plan.waves) > 1 for plan in steps)
    assert any(row.drafts for plan in steps for row in plan.rows)
    assert (verified.bench.scheduler.counters.preemptions > 0) == ("num_blocks" in options)


@pytest.mark.parametrize("kind", ["hybrid", "recurrent", "all"])
def test_states_of_rejected_tokens_do_not_stay(kind: str) -> None:
    """SP-1: after a round one state is left of the request, that of its newest token."""
    layout = LAYOUTS[kind]
    verified = Verified(make_bench(layout))
    request = verified.submit(layout, paged, [(True, False, True)] * 3, 20)
    lane: Any = verified.bench.lane
    while request.id not in verified.bench.done:
        verified.bench.step()
        if verified.bench.previous is None and request.sequence is not None:
            place = lane.states._places[request.sequence.id]
            assert place.position == request.sequence.frontier
    assert lane.states.num_rows == 0
