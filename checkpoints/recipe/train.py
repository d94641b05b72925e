"""Trains one tiny checkpoint.

Text in windows of 1024 and 2048 tokens, bfloat16 autocast, AdamW with warm-up and cosine decay
over the given time. The second half of the time uses batches twice as large.
"""

import argparse
import functools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers.modeling_layers import MtpModel
from transformers.models.nemotron_h import modeling_nemotron_h
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe

from .families import build, draft_states, project, read_config
from .release import save
from .routing import Routing

LEARNING_RATE = 2e-3
WARMUP_STEPS = 150
WEIGHT_DECAY = 0.1
DRAFT_WEIGHT, BALANCE_WEIGHT = 0.3, 0.01
REPORT_SECONDS = 15


def compute_recurrences_in_float32() -> None:
    """Take the scans of the linear layers out of autocast, which would round their state."""
    for module, name in (
        (modeling_qwen3_5, "torch_chunk_gated_delta_rule"),
        (modeling_qwen3_5_moe, "torch_chunk_gated_delta_rule"),
        (modeling_nemotron_h, "mamba2_chunk_scan"),
    ):
        setattr(module, name, _in_float32(getattr(module, name)))


def _in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    def widen(value: Any) -> Any:
        is_floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.float() if is_floating else value

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(args[0].device.type, enabled=False):
            return function(*map(widen, args), **{k: widen(v) for k, v in kwargs.items()})

    return call


# ------------------------------------------------------------------ losses
@dataclass(frozen=True)
class Losses:
    """The loss to descend, and what it is made of."""

    total: torch.Tensor
    text: torch.Tensor
    draft: torch.Tensor | None


@dataclass(frozen=True)
class Student:
    """A model in training, its head that drafts, and the routers of both."""

    model: nn.Module
    mtp: MtpModel | None
    routing: Routing
    device: torch.device

    def losses(self, ids: torch.Tensor) -> Losses:
        """Return the losses of a batch `[batch, T]` of int64 ids."""
        self.routing.clear()
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
            text = self._cross_entropy(hidden[:, :-1], ids[:, 1:])
            draft = None if self.mtp is None else self._draft_loss(hidden, ids)
            total = text + BALANCE_WEIGHT * self.routing.balance_loss()
        return Losses(total if draft is None else total + DRAFT_WEIGHT * draft, text, draft)

    def _draft_loss(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        states = draft_states(self.mtp, hidden[:, :-1].detach(), ids[:, 1:])
        return self._cross_entropy(states[:, :-1], ids[:, 2:])

    def _cross_entropy(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = project(self.model, hidden).float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return what is trained, by name."""
        drafting = [] if self.mtp is None else self.mtp.layers.named_parameters()
        return dict([*self.model.named_parameters(), *drafting])


def make_student(checkpoint: Path, seed: int, device: torch.device) -> Student:
    """Build an untrained student of a checkpoint's configuration."""
    model, mtp = build(read_config(checkpoint), seed)
    model.to(device).train()
    if mtp is not None:
        mtp.layers.to(device).train()
    watched = [model] if mtp is None else [model, mtp.layers]
    return Student(model, mtp, Routing(*watched), device)


# ------------------------------------------------------------------ training
def make_optimizer(parameters: dict[str, nn.Parameter]) -> torch.optim.AdamW:
    """Return the optimizer; embeddings, head, convolutions and vectors do not decay."""

    def decays(name: str, parameter: nn.Parameter) -> bool:
        exempt = any(part in name for part in ("embed", "lm_head", "conv"))
        return parameter.dim() >= 2 and not exempt

    decayed = [p for name, p in parameters.items() if decays(name, p)]
    rest = [p for name, p in parameters.items() if not decays(name, p)]
    groups = [
        {"params": decayed, "weight_decay": WEIGHT_DECAY},
        {"params": rest, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-8)


def learning_rate(step: int, progress: float) -> float:
    """Return the rate of a step, at `progress` in [0, 1) of the time."""
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS) * (0.02 + 0.98 * cosine)


class Batches:
    """Shuffled windows without end; every sixth batch is of the longer ones."""

    def __init__(self, windows: dict[str, np.ndarray], seed: int) -> None:
        self._windows = windows
        self._rng = np.random.default_rng(seed + 17)
        self._queues: dict[str, list[int]] = {"w1024": [], "w2048": []}
        self._drawn = 0

    def draw(self, num_tokens: int) -> torch.Tensor:
        """Return `[num_tokens // T, T]` int64 ids, at least one window."""
        name = "w2048" if self._drawn % 6 == 5 else "w1024"
        self._drawn += 1
        windows, queue = self._windows[name], self._queues[name]
        count = max(1, num_tokens // windows.shape[1])
        while len(queue) < count:
            queue.extend(self._rng.permutation(len(windows)))
        indices = [queue.pop(0) for _ in range(count)]
        return torch.from_numpy(windows[indices].astype(np.int64))


def clock(minutes: float, max_steps: int | None) -> Iterator[float]:
    """Yield, before every step, which part of the time has passed."""
    start = time.monotonic()
    step = 0
    while (progress := (time.monotonic() - start) / (60 * minutes)) < 1:
        if step == max_steps:
            return
        yield progress
        step += 1


def train(
    student: Student, batches: Batches, batch_tokens: int, times: Iterator[float]
) -> None:
    """Train until the time is over.

    Raises:
        FloatingPointError: A loss is not finite; another seed may help.
    """
    parameters = student.parameters()
    optimizer = make_optimizer(parameters)
    next_report = 0.0
    for step, progress in enumerate(times):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, progress)
        ids = batches.draw(batch_tokens * (1 if progress < 0.5 else 2)).to(student.device)
        losses = student.losses(ids)
        losses.total.backward()
        nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if progress < 0.8:
            student.routing.move_biases(1 - progress)
        if time.monotonic() > next_report:
            next_report = time.monotonic() + REPORT_SECONDS
            _report(step, progress, losses)


def _report(step: int, progress: float, losses: Losses) -> None:
    if not math.isfinite(losses.total.item()):
        raise FloatingPointError(f"loss {losses.total.item()} at step {step}")
    draft = "" if losses.draft is None else f" draft {losses.draft.item():.3f}"
    print(f"{progress:4.0%} step {step} loss {losses.text.item():.3f}{draft}", flush=True)


@torch.no_grad()
def held_out_loss(student: Student, windows: np.ndarray) -> float:
    """Return the mean loss of held-out windows; leave the model in evaluation mode."""
    student.model.eval()
    ids = torch.from_numpy(windows.astype(np.int64)).to(student.device)
    return float(np.mean([student.losses(batch).text.item() for batch in ids.split(8)]))


def main() -> None:
    """Train a checkpoint of the same configuration as another one."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("checkpoint", type=Path, help="whose config.json to follow")
    parser.add_argument("--data", type=Path, required=True, help="what build_data wrote")
    parser.add_argument("--out", type=Path, required=True, help="the new checkpoint's folder")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--steps", type=int, help="stop after this many steps")
    parser.add_argument("--batch-tokens", type=int, default=16384)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    compute_recurrences_in_float32()
    student = make_student(options.checkpoint, options.seed, torch.device(options.device))
    windows = dict(np.load(options.data / "windows.npz"))
    times = clock(options.minutes, options.steps)
    train(student, Batches(windows, options.seed), options.batch_tokens, times)
    print(f"held-out loss {held_out_loss(student, windows['held_out']):.3f}")
    tokenizer = options.data / "tokenizer"
    save(student.model, student.mtp, options.checkpoint, tokenizer, options.out)


if __name__ == "__main__":
    main()
