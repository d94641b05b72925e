"""Logit processors: penalties, biases, temperature and filters.

Functions take float32 logits `[R, V]` and one parameter per row, and change nothing in place.
Rows with a neutral parameter keep their logits, bit for bit. A filter is a *floor* `[R, 1]`:
the least logit that is kept. Floors combine by `maximum`. A floor never exceeds its row's
largest logit, so at least one token is kept.
"""

from __future__ import annotations

import mlx.core as mx

MIN_TEMPERATURE = 2.0**-126  # the least normal float32; subnormals may be flushed to 0


def penalise(
    logits: mx.array,
    in_prompt: mx.array,
    output_counts: mx.array,
    *,
    repetition: mx.array,
    presence: mx.array,
    frequency: mx.array,
) -> mx.array:
    """Lower the logits of earlier tokens.

    Args:
        logits: `[R, V]` float32.
        in_prompt: `[R, V]` bool, whether the prompt contains the token.
        output_counts: `[R, V]` int32, how often each token was generated.
        repetition: `[R]`, over prompt and output; 1 is neutral.
        presence: `[R]`, over the output; 0 is neutral.
        frequency: `[R]`, over the output; 0 is neutral.

    Source: CTRL (Keskar et al. 2019) for repetition, the OpenAI API for the other two.
    """
    in_output = output_counts > 0
    factor = mx.where(in_prompt | in_output, repetition[:, None], 1.0)
    logits = mx.where(logits > 0, logits / factor, logits * factor)
    return logits - output_counts * frequency[:, None] - in_output * presence[:, None]


def add_bias(
    logits: mx.array, row_index: mx.array, token_ids: mx.array, biases: mx.array
) -> mx.array:
    """Add `biases [N]` to the logits at `row_index [N]`, `token_ids [N]`."""
    return logits.at[row_index, token_ids].add(biases)


def scale(logits: mx.array, temperature: mx.array) -> mx.array:
    """Divide by `temperature [R]`, which is positive; 1 is neutral.

    Rows with another temperature are first shifted to a maximum of 0. A tiny temperature then
    gives -inf for all but the largest logits, and never +inf.
    """
    temperature = temperature[:, None]
    shift = mx.where(temperature == 1, 0.0, mx.max(logits, axis=-1, keepdims=True))
    return (logits - shift) / mx.maximum(temperature, MIN_TEMPERATURE)


def rank(logits: mx.array, width: int) -> mx.array:
    """Return the `width` largest logits of each row, largest first: `[R, width]`."""
    if width < logits.shape[-1]:
        logits = mx.topk(logits, width, axis=-1)
    return -mx.sort(-logits, axis=-1)


def nucleus_floor(ranked: mx.array, top_k: mx.array, top_p: mx.array) -> mx.array:
    """Return the floors of top-k, and of top-p among the tokens that top-k keeps.

    A token is kept while the tokens ranked before it have less than `top_p` of the mass.
    Tokens with the logit of the last kept token are kept too.

    Args:
        ranked: `[R, C]` from `rank`, with `C` >= every `top_k`.
        top_k: `[R]` int32, at least 1; the vocabulary size is neutral.
        top_p: `[R]`; 1 is neutral.
    """
    top_p = top_p[:, None]
    candidate = mx.arange(ranked.shape[-1]) < top_k[:, None]
    mass = mx.where(candidate, mx.exp(ranked - ranked[:, :1]), 0.0)
    # running sums, unlike a softmax, do not depend on `C`, which other rows may enlarge
    before = mx.cumsum(mass, axis=-1, inclusive=False)
    total = before[:, -1:] + mass[:, -1:]
    kept = candidate & ((before < top_p * total) | (top_p >= 1))
    num_kept = mx.maximum(mx.sum(kept, axis=-1, keepdims=True), 1)
    return mx.take_along_axis(ranked, num_kept - 1, axis=-1)


def min_p_floor(logits: mx.array, min_p: mx.array) -> mx.array:
    """Return the floors `[R, 1]` of `min_p [R]`, fractions of the largest probability.

    0 is neutral.
    """
    return mx.max(logits, axis=-1, keepdims=True) + mx.log(min_p)[:, None]


def drop_below(logits: mx.array, floor: mx.array) -> mx.array:
    """Set the logits below `floor [R, 1]` to -inf."""
    return mx.where(logits >= floor, logits, -mx.inf)
