"""The batched sampler: draws one token per row of logits.

The sampler never waits for the device: tokens may be unevaluated when the next step is built.
Each stage computes only the rows whose parameters need the stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import mlx.core as mx

from . import processors
from .row_state import Draw, RowState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .params import SamplingParams

__all__ = ["Draw", "RowState", "SampledRows", "draw", "gumbel"]

_HALF_STEP = 2.0**-33  # half the spacing of the 32-bit generator's numbers
_BELOW_ONE = 1 - 2.0**-24  # the largest float32 under 1


@attrs.frozen(eq=False)
class SampledRows:
    """The results of a step's draws, as unevaluated arrays. Row `r` is the draw `r`.

    Log-probabilities are of the model's own distribution, before penalties, biases and
    temperature. The last three arrays are None if no row asks for log-probabilities. Rows that
    do not ask are zero.

    Attributes:
        tokens: `[R]` int32.
        finite: `[R]` bool, whether every logit of the row is finite. Tokens of other rows are
            invalid.
        logprobs: `[R]` float32, log-probabilities of the sampled tokens.
        top_ids: `[R, K]` int32, the most likely tokens, best first. `K` is the largest
            `logprobs` of all rows, at most `V`.
        top_logprobs: `[R, K]` float32, log-probabilities of `top_ids`.
    """

    tokens: mx.array
    finite: mx.array
    logprobs: mx.array | None = None
    top_ids: mx.array | None = None
    top_logprobs: mx.array | None = None


def draw(logits: mx.array, rows: Sequence[Draw]) -> SampledRows:
    """Draw one token per row. The requests' states are not changed.

    A row's token depends on its own logits, parameters, seed and index, and never on other
    rows. A greedy batch is one argmax. Greedy and random rows share one batch.

    Args:
        logits: `[R, V]`, any float dtype.
        rows: The draw of each row.
    """
    shaped = _add_biases(_penalise(logits, rows), rows)
    tokens = mx.argmax(shaped, axis=-1).astype(mx.int32)
    drawing = [i for i, row in enumerate(rows) if not row.params.greedy]
    if drawing:
        drawn = _draw(_select(shaped, drawing), [rows[i] for i in drawing])
        tokens = _place(drawn, drawing, tokens)
    return _with_logprobs(SampledRows(tokens, _all_finite(logits)), logits, rows)


def _all_finite(logits: mx.array) -> mx.array:
    """Return `[R]` bool, whether all logits of a row are finite, by one sum per row.

    A sum of finite logits is finite except in float16, whose largest value is 65504.
    """
    if logits.dtype == mx.float16:
        logits = logits.astype(mx.float32)
    total = mx.sum(logits, axis=-1)
    return total - total == 0


def gumbel(uniform: mx.array) -> mx.array:
    """Return finite Gumbel noise for uniform numbers in `[0, 1]`."""
    return -mx.log(-mx.log(mx.clip(uniform, _HALF_STEP, _BELOW_ONE)))


def _penalise(logits: mx.array, rows: Sequence[Draw]) -> mx.array:
    index = [i for i, row in enumerate(rows) if row.state.history is not None]
    if not index:
        return logits
    logits = logits.astype(mx.float32)
    histories = [h for row in rows if (h := row.history) is not None]
    asked = [rows[i].params for i in index]
    penalised = processors.penalise(
        _select(logits, index),
        mx.stack([history.in_prompt for history in histories]),
        mx.stack([history.output_counts for history in histories]),
        repetition=_floats(p.repetition_penalty for p in asked),
        presence=_floats(p.presence_penalty for p in asked),
        frequency=_floats(p.frequency_penalty for p in asked),
    )
    return _place(penalised, index, logits)


def _add_biases(logits: mx.array, rows: Sequence[Draw]) -> mx.array:
    biases = [
        (i, token, bias)
        for i, row in enumerate(rows)
        for token, bias in row.params.logit_bias.items()
    ]
    if not biases:
        return logits
    row_index, token_ids, values = zip(*biases, strict=True)
    logits = logits.astype(mx.float32)
    return processors.add_bias(logits, _ints(row_index), _ints(token_ids), _floats(values))


def _draw(logits: mx.array, rows: Sequence[Draw]) -> mx.array:
    asked = [row.params for row in rows]
    temperature = _floats(p.temperature for p in asked)
    logits = _filter(processors.scale(logits.astype(mx.float32), temperature), asked)
    noise = gumbel(_uniform([row.key() for row in rows], logits.shape[-1]))
    # the argmax of logits + Gumbel noise is a draw from softmax(logits)
    return mx.argmax(logits + noise, axis=-1).astype(mx.int32)


def _uniform(keys: list[tuple[int, int]], width: int) -> mx.array:
    # [R, width]; each row is a function of its key only
    def one_row(key: mx.array) -> mx.array:
        return mx.random.uniform(shape=(width,), key=key)

    return mx.vmap(one_row)(mx.array(keys, dtype=mx.uint32))


def _filter(logits: mx.array, asked: Sequence[SamplingParams]) -> mx.array:
    vocab_size = logits.shape[-1]
    narrow = [i for i, p in enumerate(asked) if 0 < p.top_k < vocab_size]
    # ranked separately, so that narrow rows do not sort the whole vocabulary
    wide = [i for i, p in enumerate(asked) if not 0 < p.top_k < vocab_size and p.top_p < 1]
    if not narrow and not wide and all(p.min_p == 0 for p in asked):
        return logits
    floor = processors.min_p_floor(logits, _floats(p.min_p for p in asked))
    for index in filter(None, (narrow, wide)):
        nucleus = _nucleus_floor(_select(logits, index), [asked[i] for i in index])
        floor = floor.at[_ints(index)].maximum(nucleus)
    return processors.drop_below(logits, floor)


def _nucleus_floor(logits: mx.array, asked: Sequence[SamplingParams]) -> mx.array:
    vocab_size = logits.shape[-1]
    top_ks = [min(p.top_k or vocab_size, vocab_size) for p in asked]
    ranked = processors.rank(logits, max(top_ks))
    return processors.nucleus_floor(ranked, _ints(top_ks), _floats(p.top_p for p in asked))


def _with_logprobs(sampled: SampledRows, logits: mx.array, rows: Sequence[Draw]) -> SampledRows:
    index = [i for i, row in enumerate(rows) if row.params.logprobs > 0]
    if not index:
        return sampled
    num_rows, vocab_size = logits.shape
    width = min(vocab_size, max(rows[i].params.logprobs for i in index))
    logits = _select(logits, index).astype(mx.float32)
    normaliser = mx.logsumexp(logits, axis=-1, keepdims=True)
    own = (
        mx.take_along_axis(logits, _select(sampled.tokens, index)[:, None], axis=-1)
        - normaliser
    )
    top_ids = _best(logits, width)
    top = mx.take_along_axis(logits, top_ids, axis=-1) - normaliser
    return attrs.evolve(
        sampled,
        logprobs=_place(own[:, 0], index, mx.zeros(num_rows)),
        top_ids=_place(top_ids, index, mx.zeros((num_rows, width), dtype=mx.int32)),
        top_logprobs=_place(top, index, mx.zeros((num_rows, width))),
    )


def _best(logits: mx.array, width: int) -> mx.array:
    # [R, V] -> [R, width] token ids, most likely first
    ids = mx.argpartition(-logits, width - 1, axis=-1)[:, :width].astype(mx.int32)
    order = mx.argsort(-mx.take_along_axis(logits, ids, axis=-1), axis=-1)
    return mx.take_along_axis(ids, order, axis=-1)


def _select(whole: mx.array, index: Sequence[int]) -> mx.array:
    return whole if len(index) == whole.shape[0] else whole[_ints(index)]


def _place(part: mx.array, index: Sequence[int], whole: mx.array) -> mx.array:
    # writes `part` to the rows `index` of `whole`, which no caller may hold
    if len(index) == whole.shape[0]:
        return part
    whole[_ints(index)] = part
    return whole


def _floats(values: Iterable[float]) -> mx.array:
    return mx.array(list(values), dtype=mx.float32)


def _ints(values: Iterable[int]) -> mx.array:
    return mx.array(list(values), dtype=mx.int32)
