"""The conformance suite: what every family promises, one method a clause.

A plugin's whole test file is a fixture and a subclass:

    @pytest.fixture(scope="session")
    def neve_family():
        return "llama", Path(__file__).parent / "checkpoint"


    class TestLlama(FamilySuite):
        pass

Without a file of tests: `pytest --pyargs neve.testing.suite --family llama --checkpoint PATH`.
A clause that a family cannot keep is overridden under a strict xfail with a reason; any
other override, and any deletion, fails a clause of its own.
"""

from __future__ import annotations

import copy
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from ..checkpoint.quantization import Mode
from ..contract.cache_spec import CacheLayout
from ..contract.plan import HOOKSPEC_VERSION, ColdEligibility, ExecutionPlan, OutputProtocol
from ..contract.sidecar import SidecarPolicy
from ..engine.completion import Completion
from ..errors import ConfigError
from ..families import ENTRY_POINT_GROUP
from ..model import Model
from . import config_probe as probe
from . import weight_probe
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
from .subject import Subject

NUM_TOKENS = 24
"""Length of an answer, where no golden gives one."""

IMPORTS_MLX = f"""
import sys
from importlib.metadata import entry_points
from neve.families import discover
for point in entry_points(group={ENTRY_POINT_GROUP!r}):
    before = "mlx.core" in sys.modules
    if sys.argv[1] in discover([point]).families:
        print("mlx.core" in sys.modules and not before)
"""


class FamilySuite:
    """What every family promises."""

    pytestmark = pytest.mark.mlx

    # -- what the clauses share ------------------------------------------------------------

    @pytest.fixture(scope="module")
    @classmethod
    def model(cls, subject: Subject) -> Iterator[Model]:
        """The checkpoint on the block-paged cache."""
        with subject.load() as model:
            yield model

    @pytest.fixture(scope="module")
    @classmethod
    def goldens(cls, subject: Subject) -> Goldens:
        """What a reference answered."""
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
        """Their greedy answers, each computed alone."""
        return one_by_one(model, prompts, max_tokens=NUM_TOKENS, cache_salt="serial")

    # -- what a family says of itself ------------------------------------------------------

    @pytest.mark.usefixtures("neve_family")
    def test_no_clause_is_missing(self) -> None:
        """FW-6: a clause is waived by a strict xfail with a reason, and in no other way."""
        replaced = [name for name in CLAUSES if _is_replaced(type(self), name)]

        assert replaced == []

    def test_info(self, subject: Subject) -> None:
        """FW-2: a family answers for its model types, under this hook specification."""
        info = subject.family.info
        protocol = subject.family.output_protocol(subject.family.parse_config(subject.config))

        assert info.hookspec_version == HOOKSPEC_VERSION
        assert subject.config["model_type"] in info.model_types
        assert info.name.strip()
        assert info.distribution.strip()
        assert isinstance(protocol, OutputProtocol)

    def test_info_imports_no_mlx(self, subject: Subject) -> None:
        """FW-2: listing families costs no import of MLX."""
        done = subprocess.run(  # noqa: S603  our own interpreter and text
            [sys.executable, "-c", IMPORTS_MLX, subject.family.name],
            capture_output=True,
            text=True,
            check=True,
        )

        assert done.stdout.split() == ["False"]

    def test_config_round_trip(self, subject: Subject) -> None:
        """FW-2: parsing changes nothing, keeps nothing, and gives equal configs."""
        raw = copy.deepcopy(dict(subject.config))
        config = subject.family.parse_config(raw)

        assert raw == subject.config
        probe.wipe(raw)
        assert config == subject.family.parse_config(subject.config)

    def test_config_keys(self, subject: Subject) -> None:
        """FA: a key that is needed is named when missing or mistyped; null means missing."""
        family, raw = subject.family, subject.config
        config, needed = family.parse_config(raw), 0
        for path in probe.key_paths(raw):
            missing = probe.outcome(family, probe.without(raw, path))
            null = probe.outcome(family, probe.replaced(raw, path, None))
            assert probe.refuses(missing, path) == probe.refuses(null, path), path
            assert probe.refuses(null, path) or null == missing, path
            needed += isinstance(missing, ConfigError)

            wrong = probe.mistyped(probe.value_at(raw, path))
            found = probe.outcome(family, probe.replaced(raw, path, wrong))
            assert probe.refuses(found, path) or found == config, (path, wrong)

        assert needed > 0

    def test_layout(self, subject: Subject) -> None:
        """GR-1: the cache layout is a valid one, with one route a layer."""
        family = subject.family
        config = family.parse_config(subject.config)
        layout, shape = family.declare_cache_groups(config), family.model_shape(config)

        assert isinstance(layout, CacheLayout)
        assert layout.num_layers == shape.num_layers
        assert min(shape.vocab_size, shape.max_context) > 0
        assert isinstance(family.execution_plan(config), ExecutionPlan)

    def test_cold_restore_statement(self, subject: Subject) -> None:
        """CT-1: a family says whether its prefixes may come back from disk, and why."""
        family, config = subject.family, subject.family.parse_config(subject.config)
        policy = family.build_sidecar_policy(config)

        for asked in (None, config):
            eligibility = family.cold_restore_eligibility(asked)
            assert isinstance(eligibility, ColdEligibility)
            assert eligibility.reason.strip()
        assert policy is None or isinstance(policy, SidecarPolicy)

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
        """FA: MLX-quantised weights load, take less room, and answer alike on both paths."""
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

    # -- against a reference ---------------------------------------------------------------

    def test_reference_logits(self, model: Model, goldens: Goldens) -> None:
        """FA: float32 logits are the reference's, up to rounding."""
        for prompt_id, golden in goldens.logits.items():
            ids = goldens.prompt(prompt_id).ids
            logits = np.array(model.logits(ids))[golden.positions]

            assert logit_distance(logits, golden.logits) <= LOGIT_TOLERANCE, prompt_id

    def test_greedy_equals_reference(self, model: Model, goldens: Goldens) -> None:
        """FA: greedy tokens are the reference's, up to its first tie."""
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
        """KV-10: both paths give the same text, one turn and two, and one of them hits."""
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
        """TG-3: requests that share steps answer as each would alone."""
        batched = at_once(model, prompts, max_tokens=NUM_TOKENS, cache_salt="batched")

        assert tokens(batched) == tokens(serial)
        assert model.stats().scheduler.max_batch_occupancy > 1

    def test_preempted_equals_serial(
        self, subject: Subject, prompts: list[list[int]], serial: list[Completion]
    ) -> None:
        """SC-3: requests that lose their blocks and compute again answer alike."""
        short, most = prompts[:4], len(prompts[3]) + NUM_TOKENS
        with subject.load(
            paged_cache_memory_mb=subject.cache_mb(2 * most),
            watermark_fraction=0.0,
            max_num_seqs=32,
        ) as model:
            num_rounds = model.info.effective_window_tokens // most + 2
            handles = [
                [model.submit(p, max_tokens=NUM_TOKENS, cache_salt=f"{i}") for p in short]
                for i in range(num_rounds)
            ]
            answers = [[handle.result() for handle in one] for one in handles]
            preemptions = model.stats().scheduler.preemptions

        assert preemptions > 0
        assert [tokens(one) for one in answers] == [tokens(serial[:4])] * num_rounds

    @pytest.mark.parametrize("prefill_chunk_size", [7, 64])
    def test_chunked_equals_whole(
        self,
        subject: Subject,
        prompts: list[list[int]],
        serial: list[Completion],
        prefill_chunk_size: int,
    ) -> None:
        """SC-1: a prompt that is computed in slices is answered as in one piece."""
        with subject.load(prefill_chunk_size=prefill_chunk_size) as model:
            sliced = one_by_one(model, prompts, max_tokens=NUM_TOKENS)

        assert tokens(sliced) == tokens(serial)

    def test_row_exact(self, subject: Subject, prompts: list[list[int]]) -> None:
        """SC-8: in the row-exact lane log-probabilities are bit-identical in any company."""
        options: dict[str, Any] = {"max_tokens": 12, "logprobs": 5}
        with subject.load(row_exact=True) as model:
            alone = one_by_one(model, prompts[::2], **options, cache_salt="alone")
            batched = at_once(model, prompts[::2], **options, cache_salt="batched")
            occupancy = model.stats().scheduler.max_batch_occupancy

        assert occupancy > 1
        assert [a.logprobs for a in batched] == [a.logprobs for a in alone]

    def test_seeded_sampling_equals(self, model: Model, prompts: list[list[int]]) -> None:
        """SC-7: a seed gives the same tokens alone and in a batch, and another seed others."""
        options: dict[str, Any] = {"max_tokens": NUM_TOKENS, "temperature": 1.0}
        alone = one_by_one(model, prompts[::2], seed=7, **options)
        batched = at_once(model, prompts[::2], seed=7, **options)
        others = at_once(model, prompts[::2], seed=8, **options)

        assert tokens(batched) == tokens(alone)
        assert tokens(others) != tokens(alone)


CLAUSES = tuple(name for name in vars(FamilySuite) if name.startswith("test_"))


def _is_replaced(suite: type[FamilySuite], name: str) -> bool:
    own = inspect.getattr_static(suite, name)
    return own is not vars(FamilySuite)[name] and not _is_waived(own)


def _is_waived(clause: object) -> bool:
    """Return whether a clause stands under a strict xfail with a reason."""
    marks: list[pytest.Mark] = getattr(clause, "pytestmark", [])
    return any(
        mark.name == "xfail" and mark.kwargs.get("strict") and mark.kwargs.get("reason")
        for mark in marks
    )


class TestFamily(FamilySuite):
    """The family that `--family` and `--checkpoint` name."""
