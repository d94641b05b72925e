import io
import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.errors import InvalidSamplingError
from neve.sampling.acceptance import accepted
from neve.sampling.row_state import RowState
from neve.sampling.sampler import Draw, SampledRows, draw, gumbel

pytestmark = pytest.mark.mlx

MakeRow = Callable[..., RowState]

VOCAB = 40
WISHES: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.5, "logprobs": 2},
    {"logit_bias": {3: 2.0, 5: -100}},
    {"temperature": 1.0, "seed": 0},
    {"temperature": 0.7, "seed": 1, "top_k": 5},
    {"temperature": 1.3, "seed": 2, "top_p": 0.8},
    {"temperature": 1.0, "seed": 3, "top_k": 20, "top_p": 0.9, "logprobs": 3},
    {"temperature": 1.0, "seed": 4, "min_p": 0.1, "presence_penalty": 1.0},
    {"temperature": 2.0, "seed": 5, "frequency_penalty": 0.5, "logit_bias": {1: 4.0}},
]
DRAWING = [wishes for wishes in WISHES if "temperature" in wishes]


def step_logits(row: int, step: int, vocab_size: int = VOCAB) -> mx.array:
    rng = np.random.default_rng([row, step])
    return mx.array(rng.normal(size=vocab_size).astype(np.float32) * 2)


def run(order: list[int], num_steps: int, make_row: MakeRow) -> dict[int, list[int]]:
    """Sample `num_steps` tokens for the rows of `WISHES` named in `order`, unevaluated."""
    rows = [make_row(VOCAB, prompt_tokens=[1, 2, 2], **WISHES[i]) for i in order]
    steps = [
        sample(mx.stack([step_logits(i, step) for i in order]), rows).tokens
        for step in range(num_steps)
    ]
    columns = listed(mx.stack(steps, axis=1))
    return {i: columns[place] for place, i in enumerate(order)}


def sample(logits: mx.array, rows: list[RowState]) -> SampledRows:
    """Draw one token a row and accept it, as a step of decode rows does."""
    sampled = draw(logits, [Draw(row) for row in rows])
    for i, row in enumerate(rows):
        row.accept(sampled.tokens, i)
    return sampled


def listed(array: mx.array) -> Any:
    return array.tolist()


def primitives(array: mx.array) -> set[str]:
    dot = io.StringIO()
    mx.export_to_dot(dot, array)
    return set(re.findall(r'label ="(\w+)"', dot.getvalue()))


def log_softmax(row: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    row = row.astype(np.float64) - row.max()
    return row - np.log(np.exp(row).sum())


def test_greedy_wave_is_one_argmax(make_row: MakeRow):
    """SC-7: a greedy wave is one argmax: no cast of the logits, no draw, no filter."""
    logits = mx.stack([step_logits(i, 0) for i in range(4)])
    mx.eval(logits)
    rows = [
        make_row(VOCAB, temperature=t, top_k=k) for t, k in [(0, 0), (1, 1), (0, 9), (0, 0)]
    ]
    sampled = sample(logits, rows)

    assert primitives(sampled.tokens) <= {"ArgReduce", "Squeeze", "AsType"}
    assert sampled.tokens.dtype == mx.int32
    assert sampled.tokens.tolist() == np.argmax(np.array(logits), axis=1).tolist()
    assert sampled.logprobs is sampled.top_ids is sampled.top_logprobs is None


@pytest.mark.parametrize("wishes", [{"top_p": 0.0, "temperature": 1}, {"top_k": 1}, {}])
def test_greedy_takes_the_first_of_equals(make_row: MakeRow, wishes: dict[str, Any]):
    """Every way to say greedy takes the lowest of equally likely tokens."""
    logits = mx.array([[0.0, 7.0, 7.0, -mx.inf]])

    assert sample(logits, [make_row(4, **wishes)]).tokens.tolist() == [1]


@settings(deadline=None, max_examples=25)
@given(order=st.permutations(range(len(WISHES))), size=st.integers(1, len(WISHES)))
def test_tokens_do_not_depend_on_the_batch(make_row: MakeRow, order: list[int], size: int):
    """SC-7: a seed gives the same tokens alone and in any batch, in any order."""
    batch = run(order[:size], 4, make_row)
    alone = {i: run([i], 4, make_row)[i] for i in order[:size]}

    assert batch == alone


def test_mixed_wave_leaves_greedy_rows_greedy(make_row: MakeRow):
    """SC-7: in a mixed wave a greedy row still takes its most likely token."""
    logits = mx.stack([step_logits(i, 0) for i in range(6)])
    rows = [make_row(VOCAB, temperature=i % 2, seed=i) for i in range(6)]
    tokens = listed(sample(logits, rows).tokens)

    assert tokens[::2] == np.argmax(np.array(logits), axis=1).tolist()[::2]


def flat_draws(make_row: MakeRow, num_steps: int = 12, **wishes: Any) -> list[int]:
    row = make_row(1000, temperature=1.0, **wishes)
    logits = mx.zeros((1, 1000))
    return listed(mx.concatenate([sample(logits, [row]).tokens for _ in range(num_steps)]))


def test_seeds(make_row: MakeRow):
    """0 is a seed like any other; without one, two requests differ."""
    assert flat_draws(make_row, seed=0) == flat_draws(make_row, seed=0)
    assert flat_draws(make_row, seed=0) != flat_draws(make_row, seed=2**64 - 1)
    assert flat_draws(make_row, seed=0) != flat_draws(make_row)
    assert flat_draws(make_row) != flat_draws(make_row)
    assert len(set(flat_draws(make_row, seed=0))) > 6


@pytest.mark.parametrize("wishes", DRAWING)
@pytest.mark.parametrize("num_done", [1, 3])
def test_replay_continues_the_stream(make_row: MakeRow, wishes: dict[str, Any], num_done: int):
    """A row made anew with the tokens so far goes on as if nothing had happened."""
    logits = [step_logits(7, step)[None] for step in range(6)]
    row = make_row(VOCAB, prompt_tokens=[4, 4], **wishes)
    tokens = [sample(x, [row]).tokens.item() for x in logits]
    replayed = make_row(VOCAB, prompt_tokens=[4, 4], output_tokens=tokens[:num_done], **wishes)

    assert replayed.num_sampled == num_done
    assert [sample(x, [replayed]).tokens.item() for x in logits[num_done:]] == tokens[num_done:]
    assert replayed.num_sampled == row.num_sampled == 6


def test_lazy_penalties_equal_a_host_side_recomputation(make_row: MakeRow):
    """Five steps chained before any token is read penalise as if each had been read."""
    wishes = {"repetition_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": 0.9}
    logits = mx.zeros((1, 6)) + mx.array([3.0, 2.5, 2.4, -0.1, -0.2, -0.3])
    row = make_row(6, prompt_tokens=[0, 3], **wishes)
    lazy = [sample(logits, [row]).tokens for _ in range(5)]

    output: list[int] = []
    for _ in lazy:
        expected = np.array(logits)[0].astype(np.float64)
        for token in {0, 3, *output}:
            expected[token] *= 1.3 if expected[token] < 0 else 1 / 1.3
        for token in set(output):
            expected[token] -= 0.7 + 0.9 * output.count(token)
        output.append(int(np.argmax(expected)))
    assert mx.concatenate(lazy).tolist() == output
    assert len(set(output)) > 2


def test_nothing_waits_for_the_device(make_row: MakeRow):
    """The sampler evaluates nothing: it can be traced, where evaluation is an error."""
    rows = [make_row(VOCAB, prompt_tokens=[1], **wishes) for wishes in WISHES]
    logits = mx.stack([step_logits(i, 0) for i in range(len(WISHES))])

    def two_steps(shift: mx.array) -> mx.array:
        sample(logits + shift, rows)
        sampled = sample(logits + shift, rows)
        assert sampled.top_logprobs is not None
        return sampled.tokens

    traced = mx.vmap(two_steps)(mx.zeros(2))

    assert traced[0].tolist() == traced[1].tolist()
    assert {row.num_sampled for row in rows} == {2}


@pytest.mark.parametrize(
    "wishes",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 1.5, "top_k": 4},
        {"top_p": 0.8},
        {"top_k": 6, "top_p": 0.7},
        {"min_p": 0.2},
        {"logit_bias": {0: -100.0, 7: 3.0}},
        {"repetition_penalty": 2.0},
    ],
)
def test_distribution(make_row: MakeRow, wishes: dict[str, Any]):
    """Draws follow the filtered distribution (chi-square over fixed seeds)."""
    row = np.array([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -9.0], dtype=np.float32)
    num_draws = 4000
    states = [
        make_row(8, prompt_tokens=[0, 4], seed=seed, **{"temperature": 1.0, **wishes})
        for seed in range(num_draws)
    ]
    logits = mx.broadcast_to(mx.array(row), (num_draws, 8))
    counts = np.bincount(np.array(sample(logits, states).tokens), minlength=8)

    expected = num_draws * naive_distribution(row, **wishes)
    likely = expected >= 5
    assert counts[expected == 0].sum() == 0
    assert (
        (counts - expected)[likely] ** 2 / expected[likely]
    ).sum() < 26  # p = 0.001, 8 cells


def naive_distribution(
    logits: npt.NDArray[np.float32],
    *,
    temperature: float = 1.0,
    top_k: int = 8,
    top_p: float = 1.0,
    min_p: float = 0.0,
    logit_bias: dict[int, float] | None = None,
    repetition_penalty: float = 1.0,
) -> npt.NDArray[np.float64]:
    row = logits.astype(np.float64)
    for token in [0, 4]:
        row[token] *= repetition_penalty if row[token] < 0 else 1 / repetition_penalty
    for token, bias in (logit_bias or {}).items():
        row[token] += bias
    shares = np.exp(log_softmax(row / temperature))
    order = np.argsort(-shares)
    shares[order[top_k:]] = 0
    before = np.cumsum(shares[order]) - shares[order]
    shares[order[before >= top_p * shares.sum()]] = 0
    shares[shares < min_p * shares.max()] = 0
    return shares / shares.sum()


def test_draws_of_one_seed_are_independent(make_row: MakeRow):
    """The draws along one request's stream are as spread as those of many seeds."""
    draws = np.array(flat_draws(make_row, 600, seed=0))
    pairs = np.bincount(draws[:-1] // 250 * 4 + draws[1:] // 250, minlength=16)

    # 15 degrees of freedom, p = 0.001
    assert ((pairs - 599 / 16) ** 2 / (599 / 16)).sum() < 37.7


@settings(deadline=None, max_examples=30)
@given(
    survivor=st.integers(0, VOCAB - 1),
    seed=st.integers(0, 2**64 - 1),
    wishes=st.sampled_from([w for w in DRAWING if "logit_bias" not in w]),
)
def test_masked_tokens_never_win(
    make_row: MakeRow, survivor: int, seed: int, wishes: dict[str, Any]
):
    """Where all logits but one are -inf, that one is drawn, whatever the filters."""
    logits = mx.where(mx.arange(VOCAB) == survivor, -5.0, -mx.inf)[None]
    row = make_row(VOCAB, **{**wishes, "seed": seed})

    assert sample(logits, [row]).tokens.tolist() == [survivor]


def test_noise_is_finite():
    """A uniform of exactly 0 or 1 makes no infinite noise, and larger ones larger noise."""
    noise = np.array(gumbel(mx.array([0.0, 2.0**-32, 0.5, 1 - 2.0**-24, 1.0])))

    assert np.isfinite(noise).all()
    assert (np.diff(noise) >= 0).all()
    np.testing.assert_allclose(noise[2], -np.log(np.log(2)), rtol=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 1.0])
def test_masked_tokens_lose_at_the_ends_of_the_noise(
    make_row: MakeRow, monkeypatch: pytest.MonkeyPatch, uniform: float
):
    """Even if every uniform is 0, or 1, a masked token does not win."""

    def constant(*, shape: tuple[int, ...], key: mx.array) -> mx.array:
        return mx.zeros(shape) + key[0].astype(mx.float32) * 0 + uniform

    monkeypatch.setattr(mx.random, "uniform", constant)
    logits = mx.array([[-mx.inf, -mx.inf, -40.0, -mx.inf]])

    assert sample(logits, [make_row(4, temperature=1.0)]).tokens.tolist() == [2]


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize("wishes", WISHES)
def test_half_precision_logits(make_row: MakeRow, dtype: mx.Dtype, wishes: dict[str, Any]):
    """Logits of half precision are sampled as their float32 values."""
    logits = step_logits(0, 0).astype(dtype)[None]
    half = sample(logits, [make_row(VOCAB, prompt_tokens=[2], **wishes)])
    full = sample(logits.astype(mx.float32), [make_row(VOCAB, prompt_tokens=[2], **wishes)])

    assert half.tokens.tolist() == full.tokens.tolist()
    if half.logprobs is not None and full.logprobs is not None:
        assert half.logprobs.tolist() == full.logprobs.tolist()


@pytest.mark.parametrize("wishes", WISHES)
def test_vocabulary_of_one(make_row: MakeRow, wishes: dict[str, Any]):
    """With one token in the vocabulary, it is sampled."""
    wishes = {**wishes, "logit_bias": {}}
    sampled = sample(mx.array([[-3.0]]), [make_row(1, **wishes)])

    assert sampled.tokens.tolist() == [0]
    if sampled.top_logprobs is not None:
        assert sampled.top_logprobs.tolist() == [[0.0]]


def test_top_k_beyond_the_vocabulary(make_row: MakeRow):
    """A top_k of more than the vocabulary filters nothing."""
    logits = step_logits(0, 0)[None]
    asked, plain = (
        sample(logits, [make_row(VOCAB, temperature=1.0, seed=3, top_k=k)]).tokens.item()
        for k in (10**30, 0)
    )

    assert asked == plain


def test_logprobs(make_row: MakeRow):
    """Log-probabilities are those of the raw logits; rows that did not ask hold zeros."""
    logits = mx.stack([step_logits(i, 0) for i in range(3)])
    rows = [
        make_row(VOCAB, temperature=0.5, seed=1, logit_bias={0: 100}, logprobs=2),
        make_row(VOCAB),
        make_row(VOCAB, prompt_tokens=[1], repetition_penalty=2.0, logprobs=4),
    ]
    sampled = sample(logits, rows)
    raw = np.stack([log_softmax(row) for row in np.array(logits)])
    tokens = listed(sampled.tokens)

    assert sampled.logprobs is not None
    assert sampled.top_ids is not None
    assert sampled.top_logprobs is not None
    assert sampled.top_ids.shape == sampled.top_logprobs.shape == (3, 4)
    assert tokens[0] == 0
    for r in (0, 2):
        best = np.argsort(-raw[r])[:4]
        assert sampled.top_ids[r].tolist() == best.tolist()
        np.testing.assert_allclose(sampled.top_logprobs[r], raw[r][best], atol=1e-5)
        np.testing.assert_allclose(sampled.logprobs[r].item(), raw[r][tokens[r]], atol=1e-5)
    assert sampled.logprobs[1].item() == 0
    assert not sampled.top_logprobs[1].any()


def test_logits_are_left_alone(make_row: MakeRow):
    """Sampling changes nothing in the caller's logits."""
    logits = mx.stack([step_logits(i, 0) for i in range(len(WISHES))])
    before = np.array(logits)
    sample(logits, [make_row(VOCAB, prompt_tokens=[1], **wishes) for wishes in WISHES])

    np.testing.assert_array_equal(np.array(logits), before)


def test_bias_outside_the_vocabulary(make_row: MakeRow):
    """A row checks its biases against the vocabulary."""
    with pytest.raises(InvalidSamplingError, match="logit_bias"):
        make_row(8, logit_bias={8: 1.0})


# -- drawing and accepting are two things --------------------------------------------------


@pytest.mark.parametrize("wishes", WISHES)
def test_drawing_changes_nothing(make_row: MakeRow, wishes: dict[str, Any]):
    """ST-5: the same position gives the same token however often it is drawn."""
    row = make_row(VOCAB, prompt_tokens=[1, 2, 2], **wishes)
    logits = step_logits(0, 0)[None]
    before = (row.num_sampled, row.history)
    drawn = [draw(logits, [Draw(row)]).tokens.item() for _ in range(3)]

    assert len(set(drawn)) == 1
    assert (row.num_sampled, row.history) == before


@pytest.mark.parametrize("wishes", WISHES)
def test_a_verified_position_gets_the_token_of_plain_decoding(
    make_row: MakeRow, wishes: dict[str, Any]
):
    """ST-5, SP-1: seed, index and assumed tokens alone decide, penalties included."""
    steps = [step_logits(0, step) for step in range(6)]
    plain = make_row(VOCAB, prompt_tokens=[1, 2, 2], **wishes)
    tokens = [listed(sample(x[None], [plain]).tokens)[0] for x in steps]
    row = make_row(VOCAB, prompt_tokens=[1, 2, 2], **wishes)
    sample(steps[0][None], [row])
    drafts = tuple(tokens[1:5])
    draws = [Draw(row, drafts[:k]) for k in range(5)]
    drawn = listed(draw(mx.stack(steps[1:]), draws).tokens)

    assert drawn == tokens[1:]
    row.accept(mx.array(accepted(drafts, drawn)), count=5)
    assert row.num_sampled == plain.num_sampled
    if plain.history is not None:
        assert row.history is not None
        assert mx.array_equal(row.history.output_counts, plain.history.output_counts).item()


@given(
    drafts=st.lists(st.integers(0, 2), max_size=6),
    truth=st.lists(st.integers(0, 2), min_size=7, max_size=7),
)
def test_accepted_drafts_are_those_that_were_drawn(drafts: list[int], truth: list[int]):
    """SP-1: the longest run of right drafts and one token more, which is always the draw."""
    drawn = truth[: len(drafts) + 1]
    tokens = accepted(drafts, drawn)

    assert tokens == drawn[: len(tokens)]
    assert tokens[:-1] == drafts[: len(tokens) - 1]
    assert len(tokens) == len(drafts) + 1 or tokens[-1] != drafts[len(tokens) - 1]
    assert accepted([], []) == []


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 3, VOCAB - 1])
def test_rows_without_numbers_are_told(
    make_row: MakeRow, dtype: mx.Dtype, value: float, place: int
):
    """A NaN or infinity anywhere in a row is seen, and only in that row."""
    logits = mx.stack([step_logits(row, 0) for row in range(3)])
    logits[1, place] = value
    rows = [make_row(VOCAB, **wishes) for wishes in WISHES[2:5]]

    assert listed(sample(logits.astype(dtype), rows).finite) == [True, False, True]


def test_large_logits_are_numbers(make_row: MakeRow):
    """Logits whose sum float16 could not hold are numbers all the same."""
    for dtype, value in ((mx.float16, 60000), (mx.bfloat16, 1e30), (mx.float32, 1e30)):
        logits = mx.full((1, 4096), value, dtype=dtype)

        assert listed(sample(logits, [make_row(4096)]).finite) == [True]
