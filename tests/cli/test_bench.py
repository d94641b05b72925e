"""`neve bench`."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.mlx

SMALL = ("--prompt-tokens", "32", "--new-tokens", "8", "--requests", "2", "--repetitions", "1")


def test_table(run, checkpoint):
    """PK-3: one command shows what runs, its figures and their ratios."""
    done = run("bench", checkpoint, *SMALL, "--set", "paged_cache_memory_mb=16")

    assert (done.exit_code, done.stderr) == (0, "")
    for word in (
        "qwen3",
        "CPU",
        "prefill, 32 tokens",
        "decode, 2 at once",
        "x sooner",
        "cache group",
    ):
        assert word in done.stdout


def test_json(run_loaded):
    """PK-3: --json has the workload, the figures and their ratios."""
    done = run_loaded("bench", "name", *SMALL, "--json")
    found = json.loads(done.stdout)

    assert (found["model"], found["requests"], found["new_tokens"]) == ("name", 2, 8)
    assert found["batch_speedup"] == found["batch_tokens_per_s"] / found["decode_tokens_per_s"]
    assert found["prefix_speedup"] == found["cold_ttft_ms"] / found["warm_ttft_ms"]
    assert [group["kind"] for group in found["groups"]] == ["full"]
    assert found["groups"][0]["num_live"] == 0


@pytest.mark.parametrize(
    ("flag", "most"), [("--prompt-tokens=100000000", 4095), ("--new-tokens=5000", 4080)]
)
def test_workloads_beyond_the_context(run_loaded, flag, most):
    """UX-2: a workload that cannot run to its end is refused before it begins."""
    done = run_loaded("bench", "m", flag)

    assert (done.exit_code, done.stdout) == (2, "")
    assert f"the model's context holds 4096 tokens: at most {most} are possible" in done.stderr


def test_one_request_is_not_compared_with_itself(run_loaded):
    """UX-2: a ratio needs two sides."""
    done = run_loaded("bench", "m", *SMALL[:4], "--requests", "1", "--repetitions", "1")

    assert done.exit_code == 0
    assert "decode, 1 request" in done.stdout
    assert "at once" not in done.stdout


@pytest.mark.parametrize("flag", ["--requests=33", "--prompt-tokens=8", "--new-tokens=7"])
def test_workloads_that_measure_nothing(run_loaded, flag):
    """UX-2: a workload out of range is refused."""
    assert run_loaded("bench", "m", flag).exit_code == 2
