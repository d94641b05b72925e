"""Whole models on the GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neve.testing.golden import read_goldens
from neve.testing.parity import num_certain

pytestmark = pytest.mark.gpu

CHECKPOINTS = sorted(
    path.parent for path in Path(__file__).parents[2].glob("checkpoints/*/golden.json")
)
SCRIPT = Path(__file__).with_name("answers.py")


def answers(checkpoint: Path, device: str, **environment: str) -> dict[str, Any]:
    """Return what a process of its own says to the checkpoint's prompts, all at once."""
    done = subprocess.run(
        [sys.executable, SCRIPT, checkpoint, device],
        capture_output=True,
        text=True,
        env=os.environ | {"MLX_ENABLE_TF32": "0"} | environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("checkpoint", CHECKPOINTS, ids=lambda path: path.name)
def test_the_gpus_tokens_are_the_cpus(checkpoint: Path):
    """PK-1: a family says on a GPU, with kernels and without, what it says on a CPU."""
    goldens = read_goldens(checkpoint)
    assert goldens is not None
    cpu = answers(checkpoint, "cpu")["answers"]
    kernels = answers(checkpoint, "gpu")
    operations = answers(checkpoint, "gpu", NEVE_KERNELS="off")

    assert not [name for name in kernels["counts"] if name.endswith(":fallback")]
    assert cpu.keys() == {prompt.id for prompt in goldens.prompts}
    for prompt in goldens.prompts:
        # after a tie of two tokens either may come
        n = num_certain(prompt.f32.margins)
        assert kernels["answers"][prompt.id][:n] == cpu[prompt.id][:n], prompt.id
        assert operations["answers"][prompt.id][:n] == cpu[prompt.id][:n], prompt.id
