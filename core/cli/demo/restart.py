"""The demo's last act: a prefix outlives the process that computed it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
from rich.console import Console

from ... import interrupts
from ...certification import CASES, certify
from ...coldtier.admission.allowlist import COLD_RESTORE_FAMILIES
from ..output import heading, milliseconds, table
from .text import FIRST_TASK, SECOND_TASK, SYSTEM_PROMPT

if TYPE_CHECKING:
    from ...engine.core import ModelInfo

_TASK_TOKENS = "24"
_POLL_S = 0.1
_BOUNDARIES = (
    "Some layers of this model need the state behind the blocks as well. It is kept at a few "
    "places of a prompt; the new process goes on from the last one before the prompts part."
)


@attrs.frozen
class RestartFigures:
    """One prompt prefix in two processes.

    Attributes:
        prompt_tokens: Tokens of the second process's prompt.
        restored_tokens: Those that it found on disk.
        cold_ms: Time to the first token in the first process.
        warm_ms: The same in the second.
    """

    prompt_tokens: int
    restored_tokens: int
    cold_ms: float
    warm_ms: float

    @property
    def speedup(self) -> float:
        """How many times sooner the second one's first token came."""
        return self.cold_ms / self.warm_ms


def restart_act(
    info: ModelInfo,
    out: Console,
    *,
    number: int = 4,
    title: str = "The same system prompt in a new process",
) -> RestartFigures:
    """Ask in one process, end it, and ask in a new one.

    Args:
        info: The model that is asked.
        out: Where it is shown.
        number: The act's number.
        title: Its title.
    """
    heading(out, number, title)
    # an interrupt may neither lose the folder nor fall into its removal
    with (
        interrupts.deferred(),
        tempfile.TemporaryDirectory(prefix="neve-demo-") as folder,
    ):
        environment = _environment(info, Path(folder))
        _earn(info, Path(folder), out)
        first, second = (
            _ask(info.source, task, environment) for task in (FIRST_TASK, SECOND_TASK)
        )
    usage = second["usage"]
    figures = RestartFigures(
        usage["prompt_tokens"],
        usage["restored_tokens"],
        first["timings"]["ttft_ms"],
        second["timings"]["ttft_ms"],
    )
    shown = table("process", "request", "prompt", "from disk", "first token after")
    for name, task, answer in (("first", FIRST_TASK, first), ("second", SECOND_TASK, second)):
        tokens = answer["usage"]
        shown.add_row(
            name,
            task,
            f"{tokens['prompt_tokens']} tokens",
            f"{tokens['restored_tokens']}",
            milliseconds(answer["timings"]["ttft_ms"]),
        )
    out.print(shown)
    out.print(
        f"\nThe second process found {figures.restored_tokens} of its "
        f"{figures.prompt_tokens} prompt tokens on disk, so its first token came "
        f"{figures.speedup:.{int(figures.speedup < 3)}f} times sooner than the first one's."
    )
    if second["cache_report"]["miss"] == "no_sidecar":
        out.print(_BOUNDARIES)
    return figures


def _environment(info: ModelInfo, folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "MLX_PERSIST_PAGED_CACHE": "1",
        "MLX_COLD_CACHE_DIR": str(folder),
        "MLX_COLD_EVIDENCE_DIR": str(folder),
        "MLX_COLD_CERTIFIED_FAMILIES": info.family.name,
    }


def _earn(info: ModelInfo, folder: Path, out: Console) -> None:
    """Run the restart-parity gate for a family that neve does not list."""
    if info.model_type in COLD_RESTORE_FAMILIES:
        return
    out.print(
        f"neve's own list does not name the family {info.family.name}: it has to earn the "
        "right first, by answering from disk as it answers without.",
        style="dim",
    )
    certify(
        info.source,
        cases=CASES[1:],
        max_tokens=16,
        cold_evidence_dir=str(folder),
        paged_cache_memory_mb=info.settings.cache.paged_cache_memory_mb or 256,
    )


def _ask(source: str, task: str, environment: dict[str, str]) -> dict[str, Any]:
    """Answer in a process of its own."""
    command = [sys.executable, "-m", "neve", "generate", source, task, "--json"]
    options = ["--chat", "--system", SYSTEM_PROMPT, "--max-tokens", _TASK_TOKENS]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(  # noqa: S603  this very program, with arguments of our own
        [*command, *options], env=environment, **pipes
    ) as process:
        output, errors = _communicate(process)
    if process.returncode:
        raise click.ClickException(f"the process that was to answer failed: {errors}")
    return json.loads(output)


def _communicate(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return what a process writes to its end; an interrupt ends it."""
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=_POLL_S)
            interrupts.check()
    except BaseException:
        process.kill()
        raise
