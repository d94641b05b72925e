"""The conformance suite notices what it is there to notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx
import pytest

from neve.families import Family
from neve.testing.computed_clauses import NUM_TOKENS
from neve.testing.parity import one_by_one
from neve.testing.subject import Subject
from neve.testing.suite import FamilySuite

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.mlx

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "qwen3"
PROMPTS = [[374, 5], list(range(100, 140)), list(range(300, 330))]

clauses = FamilySuite()


@pytest.fixture(scope="module")
def sound() -> Subject:
    """A family without a fault."""
    return Subject.of("qwen3", CHECKPOINT)


@pytest.fixture
def faulty(sound: Subject) -> Callable[..., Subject]:
    """Make a subject of which one hook is replaced by `fake(real, **arguments)`."""

    def make(hook: str, fake: Callable[..., Any]) -> Subject:
        ask = sound.family._ask
        family = attrs.evolve(
            sound.family, ask={**ask, hook: lambda **kw: fake(ask[hook], **kw)}
        )
        return attrs.evolve(sound, family=family)

    return make


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let `fake(logits, batch)` change what every forward returns."""
    real = Family.forward

    def planted(fake: Callable[..., mx.array]) -> None:
        def forward(self: Family, model: Any, batch: Any, context: Any) -> mx.array:
            return fake(real(self, model, batch, context), batch)

        monkeypatch.setattr(Family, "forward", forward)

    return planted


# -- how it is run ------------------------------------------------------------------------


def test_without_a_family_everything_skips(pytester):
    """FW-6: `pytest --pyargs neve.testing.suite` alone asks for nothing."""
    outcomes = pytester.runpytest_subprocess("--pyargs", "neve.testing.suite").parseoutcomes()

    assert set(outcomes) == {"skipped"}


def test_options_name_the_family(pytester):
    """FW-6: a stranger needs two options and no file."""
    result = pytester.runpytest_subprocess(
        *("--pyargs", "neve.testing.suite", "--family", "qwen3"),
        *("--checkpoint", CHECKPOINT, "-k", "test_layout or test_info or test_weights"),
    )
    outcomes = result.parseoutcomes()

    assert (outcomes["passed"], outcomes.get("failed", 0)) == (4, 0)


# -- waivers ------------------------------------------------------------------------------


class Emptied(FamilySuite):
    def test_layout(self, subject):
        pass


class Deleted(FamilySuite):
    test_layout = None  # type: ignore[assignment]  what a subclass may try


class Skipped(FamilySuite):
    @pytest.mark.skip(reason="later")
    def test_layout(self, subject):
        pass


class NotStrict(FamilySuite):
    @pytest.mark.xfail(reason="later")
    def test_layout(self, subject):
        pass


class WithoutReason(FamilySuite):
    @pytest.mark.xfail(strict=True)
    def test_layout(self, subject):
        pass


class Waived(FamilySuite):
    @pytest.mark.xfail(strict=True, reason="the layout cannot be declared yet")
    def test_layout(self, subject):
        super().test_layout(subject)


class Extended(FamilySuite):
    def test_one_more(self):
        pass


@pytest.mark.parametrize("suite", [Emptied, Deleted, Skipped, NotStrict, WithoutReason])
def test_clause_that_was_replaced_fails_another(suite: type[FamilySuite]):
    """FW-6: a clause cannot be overridden, deleted or skipped in silence."""
    with pytest.raises(AssertionError, match="test_layout"):
        suite().test_no_clause_is_missing()


@pytest.mark.parametrize("suite", [Waived, Extended, FamilySuite])
def test_clause_may_be_waived_and_others_added(suite: type[FamilySuite]):
    """FW-6: a strict xfail with a reason is the one way out."""
    suite().test_no_clause_is_missing()


# -- planted faults -----------------------------------------------------------------------


def test_sound_family_passes(sound):
    """FW-6: the clauses below fail for the planted fault, not for something else."""
    clauses.test_config_round_trip(sound)
    clauses.test_config_keys(sound)
    clauses.test_layout(sound)
    clauses.test_cold_restore_statement(sound)
    clauses.test_weights_accounted(sound)


def mutates(real, raw):
    config = real(raw=raw)
    del raw["use_cache"]
    return config


@pytest.mark.parametrize("fake", [mutates, lambda real, raw: (real(raw=raw), raw)])
def test_config_that_is_mutated_or_kept(faulty, fake):
    """FW-6: a family that changes the raw config, or keeps it, is found."""
    with pytest.raises(AssertionError):
        clauses.test_config_round_trip(faulty("parse_config", fake))


@pytest.mark.parametrize(
    ("fake", "error"),
    [
        (lambda _, raw: raw["vocab_size"] + 1, KeyError),
        (lambda _, raw: raw.get("vocab_size", 1), AssertionError),
        (lambda _, raw: raw.get("vocab_size") or 1, AssertionError),
    ],
    ids=["untyped error", "null is no default", "any type will do"],
)
def test_config_that_is_not_checked(faulty, fake, error):
    """FW-6: a family that does not say what is wrong with a config is found."""
    with pytest.raises(error):
        clauses.test_config_keys(faulty("parse_config", fake))


def test_layout_of_other_layers(faulty):
    """FW-6: routes for more or fewer layers than the model has are found."""

    def short(real, config):
        return attrs.evolve(real(config=config), num_layers=5)

    with pytest.raises(AssertionError):
        clauses.test_layout(faulty("model_shape", short))


def test_eligibility_without_a_reason(faulty):
    """FW-6: a statement needs its reason."""

    def silent(real, config):
        return attrs.evolve(real(config=config), reason=" ")

    with pytest.raises(AssertionError):
        clauses.test_cold_restore_statement(faulty("cold_restore_eligibility", silent))


def test_swallowed_tensor(faulty):
    """FW-6: a family that drops tensors that it does not know is found."""

    def swallow(real, config, weights):
        known = set(Subject.of("qwen3", CHECKPOINT).open().weights)
        return real(config=config, weights=weights.renamed(lambda n: n if n in known else None))

    with pytest.raises(AssertionError, match="weights that do not fit"):
        clauses.test_weights_accounted(faulty("build_model", swallow))


def test_inexact_logits(sound, plant):
    """FW-6: an error of 2 in 10 000 is no rounding."""
    plant(lambda logits, _: logits * 1.0002)
    with sound.load() as model, pytest.raises(AssertionError):
        clauses.test_reference_logits(model, sound.goldens)


def test_answers_that_depend_on_company(sound, plant):
    """FW-6: logits that differ between a lone row and a batch are found."""
    plant(lambda logits, batch: mx.roll(logits, len(batch.segments) - 1, -1))
    with sound.load() as model:
        serial = one_by_one(model, PROMPTS, max_tokens=NUM_TOKENS)
        with pytest.raises(AssertionError):
            clauses.test_batched_equals_serial(model, PROMPTS, serial)


def test_answers_that_depend_on_a_hit(sound, plant):
    """FW-6: logits that are wrong when a prefix came from the cache are found."""

    def wrong_after_a_hit(logits, batch):
        first = batch.segments[0]
        return mx.roll(logits, int(first.length > 1 and first.position > 0), -1)

    plant(wrong_after_a_hit)
    with sound.load() as model:
        serial = one_by_one(model, PROMPTS, max_tokens=NUM_TOKENS, cache_salt="serial")
        with pytest.raises(AssertionError):
            clauses.test_paged_equals_flat(sound, model, PROMPTS, serial)
