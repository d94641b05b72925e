"""Gate: a prefix that came back from disk changes nothing but the time that a turn takes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from neve.certification import CASES, GateCase, Instance, run_case
from neve.kvcache.retention import snapshot_ladder

pytestmark = pytest.mark.mlx

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "paged_cache_memory_mb": 2048,
    "paged_cache_initial_memory_mb": 64,
}
STORY = "Once upon a time there was a miller who lived by a river. "

PROCESS = """
import json, sys, neve
path, prompt, persist, folder = json.loads(sys.argv[1])
with neve.load(path, dtype="float32", paged_cache_memory_mb=64,
               persist_paged_cache=persist, cold_cache_dir=folder) as model:
    model.wait_identified()
    done = model.generate(prompt, max_tokens=24)
    model.flush()
    cold = model.stats().cold
print(json.dumps([done.text, done.tokens, done.usage.restored_tokens, cold.corruptions]))
"""


def test_three_instances(certified):
    """TG-1, TG-5: capture, fresh restore and baseline answer alike, and blocks came back."""
    for case in CASES:
        report = run_case(certified, case, settings=SETTINGS)
        print(report.describe())  # noqa: T201  shown before it is judged

        assert report.failures() == []


def shallow_rungs(capture: Instance) -> list[int]:
    """Return where a capture leaves state besides its end: on a grid, or as prompts want."""
    info, num_tokens = capture.info, capture.answer.usage.prompt_tokens
    policy = info.family.build_sidecar_policy(info.config, info.dtype)
    size = info.settings.cache.paged_block_size
    if policy is not None and policy.anchors:
        return [anchor * size for anchor in policy.anchors if anchor * size < num_tokens]
    return snapshot_ladder(num_tokens, 0, size)[:-1]


def test_a_prompt_that_parts_early_restores_what_is_shared(certified):
    """TG-1: of a long prefix the blocks before the parting come back, and no block after it.

    With state beside the blocks a restore ends where the capture left one: at a shallower rung.
    """
    shared = STORY * 5
    case = GateCase(shared + STORY * 8, shared + "The code of Max is 7319. " * 8)
    report = run_case(certified, case, settings=SETTINGS)
    num_tokens = report.capture.answer.usage.prompt_tokens
    ladder = shallow_rungs(report.capture)
    print(f"ladder {ladder}\n{report.describe()}")  # noqa: T201  shown before it is judged
    print(report.restore.cold, report.restore.sidecar, sep="\n")  # noqa: T201
    restored = report.restore.answer.usage.restored_tokens

    assert report.failures() == []
    assert 0 < restored < num_tokens // 2
    if report.restore.has_state:
        assert restored in ladder
        assert report.restore.sidecar.installed >= 1


def test_a_report_without_a_restore_fails(checkpoint):
    """TG-1: equal answers are not enough; a restore that never was does not pass."""
    report = run_case(
        checkpoint, GateCase(STORY * 4, "Another prompt, " * 9), settings=SETTINGS
    )

    assert report.restore.answer.text == report.baseline.answer.text
    assert "nothing was restored" in report.failures()


def run_process(*arguments: object) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_a_prefix_outlives_its_process(checkpoint, tmp_path):
    """CT-1: a new process restores what another one computed, and answers alike."""
    arguments = [str(checkpoint), STORY * 12, True, str(tmp_path)]
    first = run_process(*arguments)
    second = run_process(*arguments)
    plain = run_process(arguments[0], arguments[1], False, str(tmp_path))

    assert first[2] == 0 == plain[2]
    assert second[2] > 0
    assert first[:2] == second[:2] == plain[:2]
    assert second[3] == 0
