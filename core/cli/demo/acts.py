"""The demo's acts: each runs on a model, shows what happens, and returns its figures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from rich.console import Console
from rich.live import Live
from rich.table import Table

from ... import interrupts
from ..output import heading, milliseconds, summary, table
from .text import BATCH, FIRST_TASK, QUESTION, SECOND_TASK, SYSTEM_PROMPT

if TYPE_CHECKING:
    from ...engine.completion import Completion
    from ...model import Model

_ANSWER_TOKENS = 96
_TASK_TOKENS = 24
_BATCH_TOKENS = 48
_SHOWN_CHARACTERS = 40
_FRAMES_PER_S = 4  # drawing takes time from the two sides that are compared


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def stream_act(model: Model, out: Console) -> Completion:
    """Show an answer as it comes."""
    heading(out, 1, "An answer, as it is written")
    out.print(f"> {QUESTION}", style="bold")
    handle = model.submit(_user(QUESTION), max_tokens=_ANSWER_TOKENS)
    for piece in handle:
        out.out(piece.text, end="", highlight=False)
        out.file.flush()
    completion = handle.result()
    out.print(f"\n\n{summary(completion)}", style="dim")
    return completion


# -- a prefix that is known ----------------------------------------------------------------


@attrs.frozen
class PrefixFigures:
    """Two requests with one system prompt: the first computes it, the second finds it."""

    first: Completion
    second: Completion

    @property
    def speedup(self) -> float:
        """How many times sooner the second one's first token came."""
        return self.first.timings.ttft_ms / self.second.timings.ttft_ms


def prefix_act(model: Model, out: Console) -> PrefixFigures:
    """Send two tasks behind the same long system prompt."""
    heading(out, 2, "A long system prompt, twice")
    first, second = (
        model.generate(
            [{"role": "system", "content": SYSTEM_PROMPT}, *_user(task)],
            max_tokens=_TASK_TOKENS,
        )
        for task in (FIRST_TASK, SECOND_TASK)
    )
    figures = PrefixFigures(first, second)
    shown = table("request", "prompt", "from the cache", "first token after")
    for task, completion in ((FIRST_TASK, first), (SECOND_TASK, second)):
        usage, ttft = completion.usage, milliseconds(completion.timings.ttft_ms)
        shown.add_row(task, f"{usage.prompt_tokens} tokens", f"{usage.cached_tokens}", ttft)
    out.print(shown)
    out.print(
        f"\nThe second request found {second.usage.cached_tokens} of its "
        f"{second.usage.prompt_tokens} prompt tokens in memory, so its first token came "
        f"{figures.speedup:.0f} times sooner."
    )
    return figures


# -- eight requests at once ----------------------------------------------------------------


@attrs.frozen
class BatchFigures:
    """The same requests one after another, and all at once.

    Attributes:
        alone_tokens_per_s: All tokens by all time, one request after another.
        together_tokens_per_s: The same, all requests at once.
        equal_answers: Requests whose two answers have the same tokens.
    """

    alone_tokens_per_s: float
    together_tokens_per_s: float
    equal_answers: int

    @property
    def speedup(self) -> float:
        """How many times faster all requests are at once."""
        return self.together_tokens_per_s / self.alone_tokens_per_s


class _Board:
    """Questions and how far their answers are; rich draws it."""

    def __init__(self, questions: Sequence[str]) -> None:
        self._questions = questions
        self._answers = [""] * len(questions)

    def add(self, index: int, text: str) -> None:
        """Continue an answer."""
        self._answers[index] += text

    def __rich__(self) -> Table:
        shown = table("question", "answer")
        for question, answer in zip(self._questions, self._answers, strict=True):
            line = " ".join(answer.split())
            cut = f"…{line[-_SHOWN_CHARACTERS:]}" if len(line) > _SHOWN_CHARACTERS else line
            shown.add_row(question, cut)
        return shown


def batch_act(model: Model, out: Console) -> BatchFigures:
    """Run eight requests one after another, then the same eight at once."""
    heading(out, 3, f"{len(BATCH)} requests, one after another and at once")
    before, after = _Board(BATCH), _Board(BATCH)
    alone, alone_s = _watched(out, before, lambda: _one_by_one(model, before))
    together, together_s = _watched(out, after, lambda: asyncio.run(_at_once(model, after)))
    out.print(after)
    figures = BatchFigures(
        _num_tokens(alone) / alone_s,
        _num_tokens(together) / together_s,
        sum(a.tokens == b.tokens for a, b in zip(alone, together, strict=True)),
    )
    out.print(
        f"\nAt once {figures.together_tokens_per_s:.0f} tokens/s, one after another "
        f"{figures.alone_tokens_per_s:.0f} tokens/s: {figures.speedup:.1f} times faster, with "
        f"{figures.equal_answers} of {len(BATCH)} answers equal to the token.\n"
    )
    out.print(
        "Both sides ran the same prompts from submission to the last token, and every request "
        "had a cache salt of its own, so that none found what another had computed.",
        style="dim",
    )
    return figures


def _watched(
    out: Console, board: _Board, run: Callable[[], list[Completion]]
) -> tuple[list[Completion], float]:
    """Run one side with its board in view; return the answers and the seconds it took."""
    with Live(board, console=out, refresh_per_second=_FRAMES_PER_S, transient=True):
        start = time.perf_counter()
        completions = run()
        seconds = time.perf_counter() - start
    return completions, seconds


def _options(side: str, index: int) -> dict[str, Any]:
    return {"max_tokens": _BATCH_TOKENS, "cache_salt": f"demo {side} {index}"}


def _one_by_one(model: Model, board: _Board) -> list[Completion]:
    completions: list[Completion] = []
    for index, question in enumerate(BATCH):
        handle = model.submit(_user(question), **_options("alone", index))
        for piece in handle:
            board.add(index, piece.text)
        completions.append(handle.result())
    return completions


async def _at_once(model: Model, board: _Board) -> list[Completion]:
    async def follow(index: int, question: str) -> Completion:
        handle = model.submit(_user(question), **_options("together", index))
        async for piece in handle:
            board.add(index, piece.text)
            interrupts.check()
        return await handle

    return list(await asyncio.gather(*(follow(i, q) for i, q in enumerate(BATCH))))


def _num_tokens(completions: Sequence[Completion]) -> int:
    return sum(completion.usage.completion_tokens for completion in completions)
