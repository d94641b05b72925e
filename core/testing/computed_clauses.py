"""Clauses about a family's computations: weights, goldens, one path against another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from ..certification import CASES, run_case
from ..checkpoint.quantization import Mode
from ..engine.completion import Completion
from ..errors import WeightError
from ..model import Model
from ..settings import MAX_NUM_SEQS_LIMIT, CacheSettings
from . import config_probe, forward_probe, weight_probe
from .golden import Goldens
from .parity import (
    LOGIT_TOLERANCE,
    at_once,
    differs_at,
    logit_distance,
    one_by_one,
    tokens,
)
from .prompts import mixed_prompts
from .quantise import quantise_checkpoint
from .subject import CACHE_TOKENS, Subject

STEP_IDS = [1, 2, 3, 5, 8, 13, 21]
"""A short prompt, with ids inside every model's vocabulary."""

NUM_TOKENS = 24
"""Length of an answer without a golden."""

BLOCK_SIZE = CacheSettings().paged_block_size


class ComputedClauses:
    """Weights, goldens, and the paths on which a request may run."""

    @pytest.fixture(scope="module")
    @classmethod
    def model(cls, subject: Subject) -> Iterator[Model]:
        """The checkpoint on the block-paged cache."""
        with subject.load() as model:
            yield model

    @pytest.fixture(scope="module")
    @classmethod
    def goldens(cls, subject: Subject) -> Goldens:
        """Answers of a reference implementation."""
        if subject.goldens is None:
            pytest.skip(f"{subject.path} has no golden.json to compare with")
        return subject.goldens

    @pytest.fixture(scope="module")
    @classmethod
    def prompts(cls, subject: Subject, model: Model) -> list[list[int]]:
        """Prompts of mixed lengths, shortest first."""
        return mixed_prompts(subject, model)

    @pytest.fixture(scope="module")
    @classmethod
    def serial(cls, model: Model, prompts: list[list[int]]) -> list[Completion]:
        """Greedy answers to the prompts, each computed alone."""
        return one_by_one(model, prompts, max_tokens=NUM_TOKENS, cache_salt="serial")

    # -- weights ---------------------------------------------------------------------------

    def test_weights_accounted(self, subject: Subject) -> None:
        """FW-2: a missing, stray or mis-shaped tensor is a WeightError that names it."""
        victim = weight_probe.victim(subject)
        missing = weight_probe.error(subject, weight_probe.without(victim))
        stray = weight_probe.error(subject, weight_probe.with_stray(victim))
        misshaped = weight_probe.error(subject, weight_probe.reshaped(victim))

        assert weight_probe.names(missing.missing, victim), missing
        assert weight_probe.names(stray.unexpected, weight_probe.STRAY), stray
        assert weight_probe.names(misshaped.mismatched, victim), misshaped

    @pytest.mark.parametrize(("mode", "group_size"), [("affine", 64), ("mxfp4", 32)])
    def test_quantised(
        self, subject: Subject, model: Model, tmp_path: Path, mode: Mode, group_size: int
    ) -> None:
        """FA: MLX-quantised weights load, take less memory, and answer alike on both paths."""
        if subject.path.is_file() or "quantization" in subject.config:
            pytest.skip("the checkpoint is quantised already")
        quantise_checkpoint(subject, tmp_path, mode=mode, group_size=group_size, bits=4)
        quantised = attrs.evolve(subject, path=tmp_path)
        prompts = mixed_prompts(subject, model)[::3]
        with quantised.load() as paged, quantised.load(use_block_paged_cache=False) as flat:
            answers = [one_by_one(m, prompts, max_tokens=12) for m in (paged, flat)]
            weight_bytes = paged.info.weight_bytes

        assert weight_bytes < model.info.weight_bytes
        assert tokens(answers[0]) == tokens(answers[1])
        assert all(tokens(answers[0]))

    def test_numbers_at_their_edges(self, subject: Subject) -> None:
        """FA: a config with a number at its edge is refused or gives finite logits."""
        family = subject.family
        for path, number, config in config_probe.edge_configs(family, subject.config):
            try:
                model = weight_probe.built(subject, config)
            except WeightError:
                continue
            layout = family.declare_cache_groups(config)
            logits = forward_probe.step(family, layout, model, [STEP_IDS]).logits
            assert np.isfinite(np.array(logits)).all(), (path, number)

    # -- one step ------------------------------------------------------------------------------

    def test_forward_contract(self, subject: Subject) -> None:
        """FW-2: each cached layer calls its context once; each wanted row gets its logits."""
        family, config = subject.family, subject.family.parse_config(subject.config)
        layout, shape = family.declare_cache_groups(config), family.model_shape(config)
        model = weight_probe.built(subject, config)
        rows = [STEP_IDS[:1], STEP_IDS, STEP_IDS[:4]]
        together = forward_probe.step(family, layout, model, rows)
        alone = [forward_probe.step(family, layout, model, [row]).logits for row in rows]

        assert together.calls == forward_probe.cached_layers(layout)
        assert together.logits.shape == (len(rows), shape.vocab_size)
        for row, logits in enumerate(alone):
            own = np.array(together.logits[row : row + 1])
            assert logit_distance(own, np.array(logits)) <= LOGIT_TOLERANCE, row

    # -- against a reference ---------------------------------------------------------------

    def test_reference_logits(self, model: Model, goldens: Goldens) -> None:
        """FA: float32 logits equal the reference's, up to rounding."""
        for prompt_id, golden in goldens.logits.items():
            ids = goldens.prompt(prompt_id).ids
            logits = np.array(model.logits(ids))[golden.positions]

            assert logit_distance(logits, golden.logits) <= LOGIT_TOLERANCE, prompt_id

    def test_greedy_equals_reference(self, model: Model, goldens: Goldens) -> None:
        """FA: greedy tokens equal the reference's, up to the reference's first tie."""
        for prompt in goldens.prompts:
            answer = model.generate(prompt.ids, max_tokens=prompt.max_new)

            assert differs_at(answer.tokens, prompt.f32) is None, prompt.id

    # -- one path against another ----------------------------------------------------------

    def test_paged_equals_flat(
        self,
        subject: Subject,
        model: Model,
        prompts: list[list[int]],
        serial: list[Completion],
    ) -> None:
        """KV-10: both paths give the same text, for one turn and two; the paged path hits."""
        with subject.load(use_block_paged_cache=False) as flat:
            lanes = [model.info.lane, flat.info.lane]
            first = one_by_one(flat, prompts[1::2], max_tokens=NUM_TOKENS)
            seconds = [
                [*prompt, *answer.tokens, *prompts[0]]
                for prompt, answer in zip(prompts[1::2], first, strict=True)
            ]
            second = one_by_one(flat, seconds, max_tokens=NUM_TOKENS)
        paged = one_by_one(model, seconds, max_tokens=NUM_TOKENS, cache_salt="serial")

        assert lanes == ["paged", "flat"]
        assert [a.text for a in first] == [a.text for a in serial[1::2]]
        assert [a.text for a in second] == [a.text for a in paged]
        assert tokens(second) == tokens(paged)
        assert paged[-1].usage.cached_tokens > 0
        assert second[-1].usage.cached_tokens == 0

    def test_batched_equals_serial(
        self, model: Model, prompts: list[list[int]], serial: list[Completion]
    ) -> None:
        """TG-3: requests in shared steps give the answers of requests alone."""
        batched = at_once(model, prompts, max_tokens=NUM_TOKENS, cache_salt="batched")

        assert tokens(batched) == tokens(serial)
        assert model.stats().scheduler.max_batch_occupancy > 1

    def test_preempted_equals_serial(
        self, subject: Subject, model: Model, prompts: list[list[int]]
    ) -> None:
        """SC-3: preempted requests, computed again, give the answers of requests alone."""
        short, longest = prompts[:4], len(prompts[3]) + NUM_TOKENS
        with subject.load(
            paged_cache_memory_mb=subject.cache_mb(2 * longest),
            watermark_fraction=0.0,
            max_num_seqs=MAX_NUM_SEQS_LIMIT,
        ) as crowded:
            capacity = crowded.stats().scheduler.block_capacity * BLOCK_SIZE
            # long enough that the rows that may run need twice the capacity
            num_tokens = max(NUM_TOKENS, 2 * capacity // MAX_NUM_SEQS_LIMIT)
            options: dict[str, Any] = {"max_tokens": num_tokens, "ignore_eos": True}
            crowd = short * (capacity // longest + 2)
            handles = [
                crowded.submit(ids, **options, cache_salt=f"{i}") for i, ids in enumerate(crowd)
            ]
            answers = [handle.result() for handle in handles]
            preemptions = crowded.stats().scheduler.preemptions
        alone = one_by_one(model, short, **options)

        assert preemptions > 0
        assert tokens(answers) == tokens(alone) * (len(crowd) // len(short))

    def test_restored_equals_computed(self, subject: Subject, model: Model) -> None:
        """TG-1: a fresh instance restores prefixes, with answers equal to computed ones."""
        eligibility = subject.family.cold_restore_eligibility(model.info.config)
        if not eligibility.eligible:
            pytest.skip(eligibility.reason)
        settings = {
            "dtype": "float32",
            "paged_cache_memory_mb": subject.cache_mb(CACHE_TOKENS),
        }
        for case in CASES:
            report = run_case(subject.path, case, max_tokens=NUM_TOKENS, settings=settings)
            print(report.describe())  # noqa: T201  shown before it is judged

            assert report.failures() == []

    @pytest.mark.parametrize("prefill_chunk_size", [7, 64])
    def test_chunked_equals_whole(
        self,
        subject: Subject,
        prompts: list[list[int]],
        serial: list[Completion],
        prefill_chunk_size: int,
    ) -> None:
        """SC-1: a prompt in slices gives the answer of the whole prompt."""
        with subject.load(prefill_chunk_size=prefill_chunk_size) as model:
            sliced = one_by_one(model, prompts, max_tokens=NUM_TOKENS)

        assert tokens(sliced) == tokens(serial)

    def test_row_exact(self, subject: Subject, prompts: list[list[int]]) -> None:
        """SC-8: in the row-exact lane, log-probabilities are bit-identical in any batch."""
        options: dict[str, Any] = {"max_tokens": 12, "logprobs": 5}
        with subject.load(row_exact=True) as model:
            alone = one_by_one(model, prompts[::2], **options, cache_salt="alone")
            batched = at_once(model, prompts[::2], **options, cache_salt="batched")
            occupancy = model.stats().scheduler.max_batch_occupancy

        assert occupancy > 1
        assert [a.logprobs for a in batched] == [a.logprobs for a in alone]

    def test_seeded_sampling_equals(self, model: Model, prompts: list[list[int]]) -> None:
        """SC-7: a seed gives equal tokens alone and in a batch; another seed gives others."""
        options: dict[str, Any] = {"max_tokens": NUM_TOKENS, "temperature": 1.0}
        alone = one_by_one(model, prompts[::2], seed=7, **options)
        batched = at_once(model, prompts[::2], seed=7, **options)
        others = at_once(model, prompts[::2], seed=8, **options)

        assert tokens(batched) == tokens(alone)
        assert tokens(others) != tokens(alone)
