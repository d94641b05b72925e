"""The conformance suite notices what it is there to notice."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.mlx

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "qwen3"

HEAD = f"""
from pathlib import Path
import pytest
from neve.families import Family
from neve.testing.suite import FamilySuite

@pytest.fixture(scope="session")
def neve_family():
    return "qwen3", Path({str(CHECKPOINT)!r})

"""

FAULT = """
@pytest.fixture(scope="module", autouse=True)
def fault():
    with pytest.MonkeyPatch.context() as patch:
        real = Family.{hook}
        patch.setattr(Family, "{hook}", {fake})
        yield

class TestFaulty(FamilySuite):
    pass
"""


@pytest.fixture
def run(pytester):
    """Run a file of tests and return how many passed, failed and so on."""

    def run(text: str, *arguments: str) -> dict[str, int]:
        path = pytester.makepyfile(HEAD + text)
        return pytester.runpytest_subprocess(path, "-q", *arguments).parseoutcomes()

    return run


def test_without_a_family_everything_skips(pytester):
    """FW-6: `pytest --pyargs neve.testing.suite` alone asks for nothing."""
    outcomes = pytester.runpytest_subprocess("--pyargs", "neve.testing.suite").parseoutcomes()

    assert set(outcomes) == {"skipped"}


def test_options_name_the_family(pytester):
    """FW-6: a stranger needs two options and no file."""
    result = pytester.runpytest_subprocess(
        *("--pyargs", "neve.testing.suite", "--family", "qwen3"),
        *("--checkpoint", CHECKPOINT, "-k", "layout or test_info or weights"),
    )
    outcomes = result.parseoutcomes()

    assert (outcomes["passed"], outcomes.get("failed", 0)) == (4, 0)


@pytest.mark.parametrize(
    ("body", "failed"),
    [
        ("test_layout = None", 1),
        ("def test_layout(self): pass", 1),
        ("@pytest.mark.skip\n    def test_layout(self): pass", 1),
        ("@pytest.mark.xfail(reason='later')\n    def test_layout(self): assert False", 1),
        ("@pytest.mark.xfail(strict=True)\n    def test_layout(self): assert False", 1),
        (
            (
                "@pytest.mark.xfail(strict=True, reason='no layout yet')\n"
                "    def test_layout(self, subject):\n"
                "        assert False"
            ),
            0,
        ),
        ("def test_one_more(self): pass", 0),
    ],
    ids=["deleted", "emptied", "skipped", "not strict", "no reason", "waived", "added"],
)
def test_clauses_are_waived_in_one_way_only(run, body: str, failed: int):
    """FW-6: a clause that was overridden or deleted fails another one."""
    outcomes = run(f"class TestMine(FamilySuite):\n    {body}\n", "-k", "clause or more")

    assert outcomes.get("failed", 0) == failed


@pytest.mark.parametrize(
    ("hook", "fake", "clause"),
    [
        (
            "parse_config",
            "lambda self, raw: (real(self, raw), raw.pop('use_cache', None))[0]",
            "test_config_round_trip",
        ),
        ("parse_config", "lambda self, raw: (real(self, raw), raw)", "test_config_round_trip"),
        ("parse_config", "lambda self, raw: raw['vocab_size']", "test_config_keys"),
        (
            "parse_config",
            "lambda self, raw: real(self, {'vocab_size': 9, **raw})",
            "test_config_keys",
        ),
        (
            "model_shape",
            "lambda self, config: __import__('attrs').evolve(real(self, config), num_layers=5)",
            "test_layout",
        ),
        (
            "build_model",
            (
                "lambda self, config, weights: real(self, config, weights.renamed("
                "lambda name: None if 'stray' in name else name))"
            ),
            "test_weights_accounted",
        ),
        (
            "forward",
            "lambda self, model, batch, context: real(self, model, batch, context) * 1.0002",
            "test_reference_logits",
        ),
        (
            "forward",
            (
                "lambda self, model, batch, context: __import__('mlx.core').core.roll("
                "real(self, model, batch, context), len(batch.segments) - 1, axis=-1)"
            ),
            "test_batched_equals_serial",
        ),
        (
            "forward",
            (
                "lambda self, model, batch, context: __import__('mlx.core').core.roll("
                "real(self, model, batch, context), int(batch.segments[0].length > 1 and "
                "batch.segments[0].position > 0), axis=-1)"
            ),
            "test_paged_equals_flat",
        ),
    ],
    ids=[
        "mutates",
        "keeps",
        "untyped error",
        "no mandatory key",
        "layers",
        "swallows",
        "inexact",
        "batch-dependent",
        "wrong after a hit",
    ],
)
def test_planted_faults_are_found(run, hook: str, fake: str, clause: str):
    """FW-6: a family with one fault fails the clause that is about it."""
    outcomes = run(FAULT.format(hook=hook, fake=fake), "-k", clause)

    assert outcomes["failed"] == 1
    assert "passed" not in outcomes
