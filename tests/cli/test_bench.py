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


@pytest.mark.parametrize("flag", ["--requests=33", "--prompt-tokens=8", "--new-tokens=7"])
def test_workloads_that_measure_nothing(run_loaded, flag):
    """UX-2: a workload out of range is refused."""
    assert run_loaded("bench", "m", flag).exit_code == 2
