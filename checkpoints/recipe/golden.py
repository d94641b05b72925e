"""Records what the reference, transformers on CPU, makes of a checkpoint.

Writes golden.json and logits.npz into OUT/<name of the checkpoint>/; ../README.md says what
they hold.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from transformers.modeling_layers import MtpModel

from .families import draft_states, has_mtp
from .prompts import build_prompts

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
LOGIT_PROMPTS = ("story_short", "recall_mid", "recall_long", "chat_multi")
NUM_LOGIT_POSITIONS = 4
TAIL = 16

Record = dict[str, Any]


class Reference:
    """A checkpoint in the reference implementation, in one dtype."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        generation = (folder / "generation_config.json").read_text(encoding="utf-8")
        self.architecture: str = config["architectures"][0]
        self.eos_token_id: list[int] = json.loads(generation)["eos_token_id"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        model_class = getattr(transformers, self.architecture)
        self.model = model_class.from_pretrained(folder, dtype=dtype).eval()
        self._take_time_step_limit(config)

    def _take_time_step_limit(self, config: Record) -> None:
        """Bound Mamba's dt by `time_step_limit`; transformers takes `time_step_min`."""
        for module in self.model.modules():
            if hasattr(module, "time_step_limit"):
                module.time_step_limit = tuple(config["time_step_limit"])

    @torch.no_grad()
    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the float32 logits `[T, vocab]` of a text."""
        batch = torch.tensor([ids])
        return self.model(input_ids=batch, use_cache=False).logits[0].float()

    @torch.no_grad()
    def generate(self, ids: Sequence[int], max_new: int) -> tuple[list[int], torch.Tensor]:
        """Return the greedy continuation, its end included, and its logits `[new, vocab]`."""
        batch = torch.tensor([ids])
        output = self.model.generate(
            input_ids=batch,
            attention_mask=torch.ones_like(batch),
            max_new_tokens=max_new,
            do_sample=False,
            eos_token_id=self.eos_token_id,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        logits = torch.stack([step[0].float() for step in output.logits])
        return output.sequences[0, len(ids) :].tolist(), logits


def continuation(reference: Reference, ids: Sequence[int], max_new: int) -> Record:
    """Return what one dtype makes of a prompt."""
    logits = reference.logits(ids)
    tokens, steps = reference.generate(ids, max_new)
    best, second = steps.topk(2, -1).values.unbind(-1)
    margins = [round(margin, 4) for margin in (best - second).tolist()]
    return {
        "tokens": tokens,
        "text": reference.tokenizer.decode(tokens, skip_special_tokens=False),
        "margins": margins,
        "min_margin": min(margins),
        "top5": top5(logits[-1]),
        "prompt_nll": _negative_log_likelihood(logits, ids),
        "prompt_argmax_tail": logits[-TAIL:].argmax(-1).tolist(),
    }


def top5(logits: torch.Tensor) -> list[list[float]]:
    """Return the five best `[token id, logit]` of `[vocab]`."""
    best = logits.topk(5)
    values = [round(value, 5) for value in best.values.tolist()]
    return [list(pair) for pair in zip(best.indices.tolist(), values, strict=True)]


def _negative_log_likelihood(logits: torch.Tensor, ids: Sequence[int]) -> float | None:
    if len(ids) < 2:
        return None
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
    return round(loss.item(), 6)


@torch.no_grad()
def drafts(reference: Reference, mtp: MtpModel, ids: list[int], tokens: list[int]) -> Record:
    """Return what the head drafts along the greedy continuation.

    The state of token i and the embedding of token i + 1 give a draft of token i + 2.
    """
    text = [*ids, *tokens]
    batch = torch.tensor([text])
    hidden = reference.model.model(input_ids=batch, use_cache=False).last_hidden_state
    states = draft_states(mtp, hidden[:, :-1], batch[:, 1:])
    logits = mtp.shared_head(states)[0, len(ids) - 1 :].float()
    targets = text[len(ids) + 1 :]
    drafted = logits.argmax(-1).tolist()[: len(targets)]
    return {
        "draft_tokens": drafted,
        "accepted": sum(a == b for a, b in zip(drafted, targets, strict=True)),
        "of": len(drafted),
        "top5_first_draft": top5(logits[0]),
    }


def record_prompts(folder: Path) -> list[Record]:
    """Return golden.json's entry of every prompt."""
    records = [prompt.record() for prompt in build_prompts()]
    for key, dtype in DTYPES.items():
        reference = Reference(folder, dtype)
        for record in records:
            ids = reference.tokenizer.encode(record["text"], add_special_tokens=False).ids
            record |= {"ids": ids, "n_ids": len(ids)}
            record[key] = continuation(reference, ids, record["max_new"])
    for record in records:
        if "expect" in record:
            record["recall_ok"] = record["expect"] in record["f32"]["text"]
    return records


def add_drafts(reference: Reference, records: list[Record]) -> None:
    """Add what the head of a checkpoint drafts to every prompt's entry."""
    mtp = MtpModel.from_pretrained(reference.model).eval()
    for record in records:
        record["mtp"] = drafts(reference, mtp, record["ids"], record["f32"]["tokens"])


def summarize(records: list[Record]) -> Record:
    """Return golden.json's summary."""
    answers = {r["id"]: r["recall_ok"] for r in records if "recall_ok" in r}
    equal = sum(r["f32"]["tokens"] == r["bf16"]["tokens"] for r in records)
    margins = [margin for record in records for margin in record["f32"]["margins"]]
    summary = {
        "expected": f"{sum(answers.values())}/{len(answers)}",
        "bf16_equal_prompts": f"{equal}/{len(records)}",
        "median_margin": statistics.median_high(margins),
        "missed": [name for name, answered in answers.items() if not answered],
    }
    if "mtp" in records[0]:
        accepted, drafted = (sum(r["mtp"][key] for r in records) for key in ("accepted", "of"))
        summary["mtp_accept"] = round(accepted / drafted, 3)
    return summary


def record_logits(reference: Reference, records: list[Record]) -> dict[str, np.ndarray]:
    """Return logits.npz's arrays: evenly spaced positions of some prompts."""
    arrays: dict[str, np.ndarray] = {}
    for record in records:
        if record["id"] not in LOGIT_PROMPTS:
            continue
        spaced = np.linspace(0, record["n_ids"] - 1, NUM_LOGIT_POSITIONS)
        positions = spaced.round().astype(np.int32)
        arrays[f"{record['id']}.positions"] = positions
        arrays[f"{record['id']}.logits"] = reference.logits(record["ids"]).numpy()[positions]
    return arrays


def write_goldens(folder: Path, out: Path) -> Record:
    """Write a checkpoint's two files to `out`, and return their summary."""
    records = record_prompts(folder)
    reference = Reference(folder, torch.float32)
    if has_mtp(reference.model.config):
        add_drafts(reference, records)
    golden = {
        "name": folder.name,
        "architecture": reference.architecture,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "eos_token_id": reference.eos_token_id,
        "prompts": records,
        "summary": summarize(records),
    }
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(golden, indent=1, ensure_ascii=False)
    (out / "golden.json").write_text(text, encoding="utf-8")
    np.savez_compressed(out / "logits.npz", **record_logits(reference, records))
    return golden["summary"]


def main() -> None:
    """Record the goldens of checkpoints."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("checkpoints", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    for folder in arguments.checkpoints:
        print(folder.name, write_goldens(folder, arguments.out / folder.name), flush=True)


if __name__ == "__main__":
    main()
