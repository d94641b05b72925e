"""A model whose logits are no numbers fails the request, by name, at the first bad step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from neve.contract.forward import ForwardOutput
from neve.errors import NonFiniteLogitsError

pytestmark = pytest.mark.mlx

BAD = [float("nan"), float("inf"), float("-inf")]


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give one logit of a model's last row another value, from the n-th forward on."""

    def plant(model: Any, value: float, *, first: int, last: int = 10**6) -> None:
        family = type(model.info.family)
        real, calls = family.forward, iter(range(10**6))

        def forward(self: Any, *args: Any) -> ForwardOutput:
            output = real(self, *args)
            if output.logits is None or not first <= next(calls) <= last:
                return output
            logits = output.logits.at[-1, 77].multiply(0).at[-1, 77].add(value)
            return attrs.evolve(output, logits=logits)

        monkeypatch.setattr(family, "forward", forward)

    return plant


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.8}, {"logprobs": 2}, {"logit_bias": {77: -100}}]
)
def test_first_bad_step_fails(
    load: Callable[..., Any],
    goldens: dict[str, Any],
    poison: Callable[..., None],
    value: float,
    first: int,
    options: dict[str, Any],
):
    """The error says where, the tokens before it were delivered, and it is counted."""
    model = load()
    prompt = goldens["count"]["ids"]
    poison(model, value, first=first)
    handle = model.submit(prompt, max_tokens=20, **options)
    pieces: list[Any] = []
    with pytest.raises(NonFiniteLogitsError, match="NaN or infinite") as caught:
        pieces.extend(handle)

    assert caught.value.position == len(prompt) - 1 + first
    assert len(pieces) <= first
    assert model.stats().faults == {"non_finite_logits": 1}
    assert model.stats().pools.groups[0].num_live == 0


def test_neighbours_go_on(
    load: Callable[..., Any], goldens: dict[str, Any], poison: Callable[..., None]
):
    """One row of a step fails; the others get the tokens that they would have got alone."""
    model = load()
    prompts = [goldens[name] for name in ("count", "kjv", "table")]
    poison(model, float("nan"), first=6, last=6)
    handles = [model.submit(p["ids"], max_tokens=30) for p in prompts]
    errors = [handle._future.exception(60) for handle in handles]

    assert sum(isinstance(error, NonFiniteLogitsError) for error in errors) == 1
    for prompt, handle, error in zip(prompts, handles, errors, strict=True):
        if error is None:
            assert list(handle.result().tokens) == prompt["f32"]["tokens"][:30]


def test_nothing_of_a_bad_step_is_found_again(
    load: Callable[..., Any], goldens: dict[str, Any], poison: Callable[..., None]
):
    """A prompt that gave no numbers is computed anew: its blocks were not published."""
    model = load()
    prompt = goldens["recall_mid"]
    poison(model, float("nan"), first=0, last=0)
    with pytest.raises(NonFiniteLogitsError):
        model.generate(prompt["ids"], max_tokens=4)
    done = model.generate(prompt["ids"], max_tokens=24)

    assert done.usage.cached_tokens == 0
    assert list(done.tokens) == prompt["f32"]["tokens"][:24]
