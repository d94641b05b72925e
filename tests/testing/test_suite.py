"""The conformance suite notices what it is there to notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx
import pytest

from neve.catalogue import Family
from neve.checkpoint.config import read_config, size
from neve.contract.cache_spec import FullAttention
from neve.contract.forward import ForwardOutput
from neve.errors import CacheMisuseError, ConfigError, HookFailedError
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
        real = getattr(sound.family, hook)  # a default where the plugin has no such hook
        ask = {**sound.family._ask, hook: lambda **kw: fake(real, **kw)}
        family = attrs.evolve(sound.family, ask=ask)
        return attrs.evolve(sound, family=family)

    return make


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let `fake(logits, batch)` change what every forward returns."""
    real = Family.forward

    def planted(fake: Callable[..., mx.array]) -> None:
        def forward(self: Family, model: Any, batch: Any, context: Any) -> ForwardOutput:
            output = real(self, model, batch, context)
            if output.logits is None:
                return output
            return attrs.evolve(output, logits=fake(output.logits, batch))

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
    clauses.test_config_numbers(sound)
    clauses.test_layout(sound)
    clauses.test_forward_contract(sound)
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


@attrs.frozen(kw_only=True)
class HiddenSize:
    """A key with another name."""

    hidden_size: int = size(aliases=["hidden"])


def aliased(real, raw):
    return real(raw={**raw, "hidden_size": read_config(raw, HiddenSize).hidden_size})


def aliased_tersely(real, raw):
    if raw.get("hidden") is None:
        raise ConfigError("hidden_size", "required key is missing")
    return aliased(real, raw)


@pytest.mark.parametrize("fake", [aliased, aliased_tersely])
def test_a_key_with_another_name_is_no_fault(faulty, sound, fake):
    """FW-6: missing and null are one error, whichever of a key's names it has."""
    config = {**sound.config, "hidden": sound.config["hidden_size"]}
    del config["hidden_size"]

    clauses.test_config_keys(attrs.evolve(faulty("parse_config", fake), config=config))


def test_numbers_that_are_not_checked(faulty):
    """FW-6: a number at its edge that passes in silence is found."""

    def unchecked(real, raw):
        return attrs.evolve(real(raw={**raw, "vocab_size": 64}), vocab_size=raw["vocab_size"])

    with pytest.raises(AssertionError, match="vocab_size"):
        clauses.test_config_numbers(faulty("parse_config", unchecked))


def test_logits_that_are_no_numbers(faulty):
    """FW-6: a number that passes and spoils the logits is found by the step that it spoils."""

    def unchecked(real, raw):
        eps = raw["rms_norm_eps"]
        if not isinstance(eps, float) or eps >= 0:
            return real(raw=raw)
        return attrs.evolve(real(raw={**raw, "rms_norm_eps": 1e-6}), rms_norm_eps=eps)

    with pytest.raises(AssertionError, match=r"'rms_norm_eps',\), -1\.0"):
        clauses.test_numbers_at_their_edges(faulty("parse_config", unchecked))


# -- planted faults of a step --------------------------------------------------------------


@attrs.frozen(eq=False)
class Misled:
    """A context whose layers are called under another index."""

    inner: Any
    index: Callable[[int], int]

    def attend_projected(self, layer: int, *args: Any) -> mx.array:
        return self.inner.attend_projected(self.index(layer), *args)


def as_layer(index: Callable[[int], int]) -> Callable[..., Any]:
    """Return a forward that calls its context under another index."""

    def forward(real, model, batch, context):
        return real(model=model, batch=batch, context=Misled(context, index))

    return forward


def of_every_row(real, model, batch, context):
    rows = mx.arange(batch.ids.shape[0])
    return real(model=model, batch=attrs.evolve(batch, logit_rows=rows), context=context)


def in_reverse(real, model, batch, context):
    output = real(model=model, batch=batch, context=context)
    return attrs.evolve(output, logits=output.logits[::-1])


@pytest.mark.parametrize(
    ("fake", "error", "sentence"),
    [
        (of_every_row, HookFailedError, r"forward must return logits \[3, vocab_size\]"),
        (in_reverse, AssertionError, None),
        (as_layer(lambda layer: 0), CacheMisuseError, "layer 0: layer 0 was called before"),
        (as_layer(lambda layer: layer + 1), CacheMisuseError, "layer 6: .* 6 layers, 0 to 5"),
        (as_layer(lambda layer: layer - 1), CacheMisuseError, "layer -1: .* 6 layers, 0 to 5"),
    ],
    ids=["every row", "in reverse", "as layer 0", "one layer on", "one layer back"],
)
def test_a_forward_that_breaks_the_contract(faulty, fake, error, sentence):
    """FW-6: rows that are not wanted and layers mistaken for others are found, by name."""
    with pytest.raises(error, match=sentence):
        clauses.test_forward_contract(faulty("forward", fake))


def of_wide_heads(real, config):
    return attrs.evolve(real(config=config), groups=[FullAttention(2, 32)])


def one_short(real, config):
    layout = real(config=config)
    return attrs.evolve(layout, routes=layout.routes[:-1])


@pytest.mark.parametrize(
    ("fake", "error", "sentence"),
    [
        (of_wide_heads, CacheMisuseError, r"layer 0: .* keys \[T, 2, 32\].* keys \[T, 2, 64\]"),
        (one_short, HookFailedError, "5 routes for the 6 layers"),
    ],
    ids=["wrong head_dim", "one route short"],
)
def test_a_layout_of_another_model(faulty, fake, error, sentence):
    """FW-6: a layout that does not describe the model is found, by layer and shapes."""
    with pytest.raises(error, match=sentence):
        clauses.test_forward_contract(faulty("declare_cache_groups", fake))


def test_a_layer_that_is_never_called(faulty):
    """FW-6: a cached layer that leaves its cache empty is found."""

    def half(real, model, batch, context):
        model.model.layers = model.model.layers[:-1]
        return real(model=model, batch=batch, context=context)

    with pytest.raises(AssertionError):
        clauses.test_forward_contract(faulty("forward", half))


def test_layout_of_other_layers(faulty):
    """FW-6: routes for more or fewer layers than the model has are found."""

    def short(real, config):
        return attrs.evolve(real(config=config), num_layers=5)

    with pytest.raises(HookFailedError, match="6 routes for the 5 layers"):
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
