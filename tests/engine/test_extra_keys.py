"""Pictures in the names of what is kept, in memory and in a real store on disk.

The tiny families do not look at pictures, so that equal tokens get equal answers here; what
is found shows which names were asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import neve
from neve.contract.prompt import MediaSpan, Prompt
from neve.sampling.params import SamplingParams

pytestmark = pytest.mark.mlx

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
BLOCK = 16
TOKENS = tuple(random.Random(3).choices(range(10, 1000), k=70))
WHOLE = 64
"""Tokens of the whole blocks in front of the prompt's last token."""

FAMILIES = ["qwen3", "qwen3_5", "gemma4"]
"""Full attention, a hybrid with recurrent state, and sliding windows."""


def picture(number: int = 1, start: int = 3, **more: int) -> Prompt:
    return Prompt(TOKENS, media=(MediaSpan(bytes([number]) * 32, start, 5, **more),))  # type: ignore[arg-type]


PROMPTS = {
    "text": Prompt(TOKENS),
    "picture": picture(),
    "other picture": picture(number=2),
    "other place": picture(start=4),
    "other pixels": picture(preprocessing=1),
}
Open = Callable[..., neve.Model]


@pytest.fixture(params=FAMILIES)
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Load a tiny checkpoint, with a store in a folder of the test's own if asked to."""
    models: list[neve.Model] = []

    def make(*, cold: bool) -> neve.Model:
        options: dict[str, Any] = {"paged_cache_memory_mb": 16}
        if cold:
            options |= {"persist_paged_cache": True, "cold_cache_dir": str(tmp_path)}
        models.append(neve.load(CHECKPOINTS / request.param, **options))
        if cold:
            models[-1].wait_identified()
        return models[-1]

    yield make
    for model in models:
        model.close()


def ask(model: neve.Model, prompt: Prompt) -> neve.Completion:
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    completion = model._engine.submit(prompt, params).result()
    model.flush()
    return completion


def forget(model: neve.Model) -> None:
    """Drop everything from memory, kept states included."""
    model._engine.call(lambda core: core.runner.lane.cache.purge())


def test_memory_is_asked_under_a_prompts_pictures(load: Open) -> None:
    """ST-4, ME-1: a prefix is found under equal pictures at equal places, and no others."""
    model = load(cold=False)
    for prompt in PROMPTS.values():
        assert ask(model, prompt).usage.cached_tokens == 0
    for prompt in PROMPTS.values():
        again = ask(model, prompt).usage
        assert again.cached_tokens in {0, WHOLE}  # states and windows give way to newer ones
    assert ask(model, PROMPTS["other pixels"]).usage.cached_tokens == WHOLE


@pytest.mark.parametrize("stored", PROMPTS)
def test_the_disk_is_asked_under_a_prompts_pictures(load: Open, stored: str) -> None:
    """ST-4, ME-1: captures and restore proposals name a prefix by its pictures too."""
    model = load(cold=True)
    first = ask(model, PROMPTS[stored])
    for name, prompt in PROMPTS.items():
        if name != stored:
            forget(model)
            answer = ask(model, prompt)
            assert (answer.usage.cached_tokens, answer.usage.restored_tokens) == (0, 0)
            assert answer.cache_report.miss == "no_block"
    assert model.stats().scheduler.ssd_restores == 0
    forget(model)
    again = ask(model, PROMPTS[stored])

    assert again.usage.restored_tokens == again.usage.cached_tokens == WHOLE
    assert again.tokens == first.tokens


@pytest.mark.parametrize("load", ["qwen3"], indirect=True)
@pytest.mark.parametrize("block", range(4))
def test_text_in_front_of_a_picture_is_found(load: Open, block: int) -> None:
    """ST-4, ME-1: names of blocks before a picture do not depend on it."""
    model = load(cold=True)
    ask(model, PROMPTS["text"])
    shown = picture(start=block * BLOCK)
    in_memory = ask(model, shown).usage
    forget(model)
    on_disk = ask(model, picture(number=9, start=block * BLOCK)).usage

    assert (in_memory.cached_tokens, in_memory.restored_tokens) == (block * BLOCK, 0)
    assert on_disk.cached_tokens == on_disk.restored_tokens == block * BLOCK


@pytest.mark.parametrize("load", ["qwen3"], indirect=True)
def test_one_sequence_has_one_path_of_names(
    load: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ST-4: the tier is asked for a chain under the keys of the sequence, every time."""
    model, asked = load(cold=True), list[tuple[tuple[int, ...], ...]]()

    def listen(core: Any) -> None:
        chain = core.cold.tier.chain

        def listened(salt: Any, extra_keys: Any) -> Any:
            asked.append(tuple(extra_keys))
            return chain(salt, extra_keys)

        monkeypatch.setattr(core.cold.tier, "chain", listened)

    model._engine.call(listen)
    prompt = picture(start=20)
    ask(model, prompt)
    forget(model)
    ask(model, attrs.evolve(prompt))

    keys = prompt.extra_keys(BLOCK)
    assert keys == ((), keys[1])
    assert keys[1]
    assert len(asked) >= 4  # twice a proposal, twice a capture
    assert set(asked) == {keys}
