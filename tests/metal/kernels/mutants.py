"""Bugs to be seeded into kernel bodies: each has to be noticed by what is registered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


@attrs.frozen
class Mutant:
    """A bug.

    Attributes:
        name: What is wrong.
        old: Text of the body, the first occurrence of which is replaced.
        new: What stands there instead.
        seen_by: Part of the names of the probes that can notice it.
    """

    name: str
    old: str
    new: str
    seen_by: str = ""

    def __str__(self) -> str:
        return self.name.replace(" ", "_")


MUTANTS: Mapping[str, Sequence[Mutant]] = {
    "gated_activation": (
        Mutant("threads past the row", "h < width && t < num_tokens", "t < num_tokens"),
        Mutant("no row but the first", "t < num_tokens", "t < 1"),
        Mutant("rows of half their length", "long(t) * 2 * width", "long(t) * width"),
        Mutant("the up part twice", "mkx_load<4>(row, gate)", "mkx_load<4>(row + width, gate)"),
        Mutant("the up part not loaded", "mkx_load<4>(row + width, up);", ""),
        Mutant("a load off its alignment", "row + width, up", "row + width - 1, up"),
        Mutant("three elements of four", "i < 4", "i < 3"),
        Mutant("the sign of the exponent", "metal::exp(-x)", "metal::exp(x)"),
        Mutant("the other activation", "ACT == 1", "ACT == 0"),
        Mutant("the cubic term", "0.044715f", "0.44715f", "gelu"),
        Mutant("gelu not halved", "y = 0.5f * x", "y = x", "gelu"),
        Mutant("not gated", "y * up[i]", "y"),
        Mutant("all to one place", "long(t) * width + h;\n    mkx_store", "0;\n    mkx_store"),
        Mutant("a float stored as it is", "mkx_store<4>(to, gate)", "to[0] = gate[0]"),
    ),
    "few_rows_linear": (
        Mutant("rows past the last", "min(m, num_rows - 1)", "m", "4-None"),
        Mutant(
            "outputs past the last",
            "min(first + r, num_outputs - 1) - base",
            "first + r - base",
        ),
        Mutant(
            "loads past a row", "min(k + i / W * STRIDE, num_inputs - N)", "k + i / W * STRIDE"
        ),
        Mutant("words counted twice", "if (k + u * STRIDE < num_inputs) {", "if (true) {"),
        Mutant("the half that is kept", "upper ? low : high", "upper ? high : low"),
        Mutant(
            "lanes not added",
            "sum[0] += simd_shuffle_xor",
            "sum[0] = simd_shuffle_xor",
            "1-None",
        ),
        Mutant("the ups' bias", "r < R ? o : num_outputs + o", "o", "gated"),
        Mutant("no bias", "total += float(bias", "total = float(bias", "True"),
        Mutant("the residual's row", "residual[at]", "residual[o]", "4-None"),
        Mutant("rows that are not there", "m < num_rows && o", "o", "4-None"),
        Mutant("outputs that are not there", "m < num_rows && o < num_outputs", "m < num_rows"),
        Mutant("not gated", "total = y * up", "total = y", "gated"),
        Mutant(
            "not normed", "total *= metal::precise::rsqrt", "metal::precise::rsqrt", "False-1"
        ),
        Mutant("the gain left out", "v[i] *= g[i];", "", "False-1"),
        Mutant("a weight around zero", "g[i] += 1.0f;", "", "True-2"),
        Mutant(
            "squares of one share",
            "s < S; ++s) {\n        squares",
            "s < 1; ++s) {\n        squares",
            "False-1",
        ),
        Mutant("squares of one row", "* M + m] = squares", "* M] = squares", "False-1"),
        Mutant("a sum for a mean", "squares / float(num_inputs)", "squares", "False-1"),
        Mutant("no epsilon", "float(num_inputs) + fp[3]", "float(num_inputs)", "False-1"),
        Mutant(
            "the half of squares that is kept",
            "upper ? low : high, ushort(apart));\n          square",
            "upper ? high : low, ushort(apart));\n          square",
            "False-1",
        ),
        Mutant(
            "squares of lanes not added",
            "square[0] += simd_shuffle_xor",
            "square[0] = simd_shuffle_xor",
            "False-1",
        ),
        Mutant("the first word's gain", "gain + (k + u * STRIDE)", "gain + k", "False-1"),
    ),
    "gated_delta": (
        Mutant("no barrier before staging", BARRIER, ""),
        Mutant("no barrier after staging", f"next_v);\n    {BARRIER}", "next_v);"),
        Mutant("a full chunk at the end", "left < CHUNK ? left : CHUNK", "CHUNK"),
        Mutant("tokens past the end", "there = t < length", "there = true"),
        Mutant("values past the end", "value_token < length && ", ""),
        Mutant("state rows past the end", "live ? row : 0", "row"),
        Mutant("results past the end", "lane == 0 && live", "lane == 0"),
        Mutant("states past the end", "if (live) {", "if (true) {"),
        Mutant("the state not decayed", "g * s[4 * i] + u", "s[4 * i] + u"),
        Mutant("the recall not decayed", "g * sk", "sk"),
        Mutant("the key head", "h / ip[1]", "h"),
        Mutant("the first column of values", "ip[9] + h * DV", "h * DV", "mixed"),
        Mutant(
            "keys that are not normed",
            "k_scale = metal::rsqrt",
            "k_scale = 0.5f * metal::rsqrt",
            "mixed",
        ),
        Mutant("queries that are not scaled", " * metal::rsqrt(float(DK))", "", "mixed"),
        Mutant("the shift of the decay", "log_g + shift", "log_g", "mixed"),
        Mutant("a lane's part of a sum", "sq += simd_shuffle_xor(sq, m);", ""),
        Mutant("a token's number", "long(start + c) * num_heads", "long(start) * num_heads"),
    ),
    "prepare_heads": (
        Mutant("tokens past the end", "t < int(fp[3])", "t < 1000"),
        Mutant("the null page written", "block > 0", "block >= 0", "paged"),
        Mutant("the token of before", "prev[0] + 1", "prev[0]", "paged"),
        Mutant("a token of its own", "prev[0] + 1", "1", "pairs"),
        Mutant("the stride of queries", "h * QS", "h * D"),
        Mutant("where keys begin", "HQ * QS + (is_v", "HQ * D + (is_v", "paged"),
        Mutant("the page before", "position / S", "max(position - 1, 0) / S", "paged"),
        Mutant("the place in a page", "offset = position % S", "offset = 0", "paged"),
        Mutant("a token's table", "long(int(rows[t])) *", "long(0) *", "paged"),
        Mutant(
            "values among the keys",
            "is_v ? mkx_mutable(values) :",
            "is_v ? mkx_mutable(keys) :",
        ),
        Mutant("a sum for a mean", "simd_sum(squares) / float(dims)", "simd_sum(squares)"),
        Mutant("a lane's own sum", "simd_sum(squares)", "squares"),
        Mutant("a weight around zero", "norm == 3 ? 1.0f", "norm == 3 ? 0.0f", "pairs"),
        Mutant("the turn's direction", "leads ? -z : z", "leads ? z : -z"),
        Mutant(
            "the partner of an element",
            "mkx_load<V>(from + other",
            "mkx_load<V>(from + e",
            "paged",
        ),
        Mutant("the partner's weight", "weight + other", "weight + e", "paged"),
        Mutant("the pair's other half", "j ^ 1", "j", "pairs"),
        Mutant("no head but the first", "HQ + h) * D + e", "HQ) * D + e"),
    ),
    "page_gather": (
        Mutant("threads past the end", "t < num_keys", "t < 1000000", "1-16"),
        Mutant("the null page's content", "block <= 0", "block < 0"),
        Mutant("the first page", "ip[1] + t / S", "t / S"),
        Mutant("another sequence's table", "long(row[0]) * ip[0]", "long(0) * ip[0]"),
        Mutant("the token in a page", "hk) * S + t % S", "hk) * S"),
        Mutant("one head for all", "long(hk) * num_keys + t", "long(t)", "2-4"),
        Mutant("values that are not there", "element < DV ? element : 0", "element", "1-16"),
        Mutant("values behind the last", "if (element < DV) {", "if (true) {", "1-16"),
    ),
    "paged_attention": (
        Mutant("no barrier before joining", BARRIER, ""),
        Mutant("the null page's content", "block > 0 && t < to", "t < to", "decode"),
        Mutant("keys past the end", "t < to && t >= oldest", "t >= oldest"),
        Mutant("keys of the future", "t <= own_last[k]", "t <= own_last[k] + 1", "prefill"),
        Mutant("keys before a window", " && t >= oldest;", ";", "decode"),
        Mutant("a window too wide", "position - window + 1", "position - window", "decode"),
        Mutant("a window of a chunk less", "oldest / CHUNK", "(oldest + CHUNK - 1) / CHUNK"),
        Mutant("one window for a tile", "t > own_last[k] - window", "true", "prefill"),
        Mutant(
            "a window that ends early",
            "t > own_last[k] - window",
            "t > own_last[k] - window + 1",
            "prefill",
        ),
        Mutant("its own key", "t <= own_last[k]", "t < own_last[k]", "prefill"),
        Mutant("entries past the table", "min(t / S, last_entry)", "t / S"),
        Mutant("weights not rescaled", "sum[r] *= fade;", ""),
        Mutant("sums not rescaled", "acc[r * VEC + e] *= fade;", ""),
        Mutant("a total not rescaled", "own_sum[k] *= fades[k];", ""),
        Mutant("never rescaled", "if (simd_any(rises)) {", "if (simd_any(base < 0)) {"),
        Mutant("rescaled too late", "own_most[k] + SLACK", "own_most[k] + 200.0f"),
        Mutant("another pair's rescaling", "lane, r / OWN * (LPT / SPREAD)", "lane, 0"),
        Mutant("another pair's weight", "(u * APART + r / OWN)", "(u * APART)"),
        Mutant("another pair's total", "(own * APART + r / OWN)", "(own * APART)"),
        Mutant("the last of another pair", "r == own_pair ?", "r < 0 ?", "prefill"),
        Mutant(
            "values of this chunk alone",
            "value_words[i] = next_values[i];",
            "value_words[i] = 0u;",
        ),
        Mutant("the page of before", "ids[i] = table[min(t / S, last_entry)];", ""),
        Mutant("a strand left out", "j < STRANDS; ++j", "j < STRANDS - 1; ++j"),
        Mutant("the query head", "head = hk * G + pair % G", "head = pair % G"),
        Mutant("scores without bound", "fp[1] * metal::precise::tanh(x)", "x", "True"),
        Mutant("no sink", "total += metal::exp2(sink - all);", "", "True"),
        Mutant(
            "a split's weight", "stats[to_row * 2 + 1] = total", "stats[to_row * 2 + 1] = 1.0f"
        ),
        Mutant("too small an array", "sm_sum[NSG * GT];", "sm_sum[NSG * GT - 1];"),
        Mutant("queries past the end", " && query < num_queries", "", "prefill"),
        Mutant("a lane left out", "sum[r] += simd_shuffle_xor(sum[r], step);", ""),
        Mutant(
            "no barrier behind what is stored",
            "threadgroup_barrier(mem_flags::mem_device);",
            "",
            "projected",
        ),
        Mutant("the null page written", "block > 0 && position >=", "position >=", "projected"),
        Mutant("a token of its own", "prev[0] + 1", "1", "projected"),
        Mutant("the stride of queries", "G - 1)) * QS", "G - 1)) * D", "pairs"),
        Mutant("where keys begin", "HK * G * QS + (is_v", "HK * G * D + (is_v", "pairs"),
        Mutant("the place in a page", "* S + position % S", "* S", "projected"),
        Mutant(
            "values among the keys", "is_v ? mkx_mutable(values)", "is_v ? mkx_mutable(keys)"
        ),
        Mutant(
            "a lane's own squares", "squares += simd_shuffle_xor(squares, step);", "", "halves"
        ),
        Mutant("a sum for a mean", "squares / float(dims)", "squares", "halves"),
        Mutant("the epsilon of keys", "is_q ? fp[7]", "is_q ? fp[8]", "halves"),
        Mutant("a weight around zero", "norm == 3 ? 1.0f", "norm == 3 ? 0.0f", "pairs"),
        Mutant(
            "the turn's direction", "minus ? -partner : partner", "minus ? partner : -partner"
        ),
        Mutant("the partner of an element", "row + (first + other)", "row + (first + mine)"),
        Mutant(
            "the weight of a query's partner",
            "q_weight + (turned && !INTER ? beside : k_element)",
            "q_weight + k_element",
            "halves",
        ),
        Mutant("the weight of a key's partner", "weight + other", "weight + mine", "halves"),
        Mutant("values turned", "turned && (is_q || !is_v)", "turned", "projected"),
        Mutant("queries not scaled", "rounded * fp[0]", "rounded", "projected"),
        Mutant("the row before", "q + long(tile) * int(fp[6])", "q", "projected"),
        Mutant("the turn of another row", "turns + long(tile) * ROT", "turns", "halves"),
        Mutant("the queries of one key head", "(hk * G + min(first", "(min(first", "projected"),
        Mutant("the key of one head", "hk * DV : hk * D)", "hk * DV : 0)", "projected"),
    ),
    "paged_combine": (
        Mutant("the first split left out", "j = lane; j < splits", "j = lane + 1; j < splits"),
        Mutant("no sink", "total += metal::exp2(sink - most);", "", "True"),
        Mutant("splits of equal weight", "total += weight * sum", "total += weight"),
        Mutant("a lane's own total", "total = simd_sum(total)", "total = total"),
        Mutant("a lane's own weight", "simd_shuffle(weight, j + i - first)", "weight"),
        Mutant("the row of parts", "row * splits * DV", "row * DV"),
        Mutant("splits past the last", "min(j + i, splits - 1)", "j + i"),
        Mutant(
            "what was not written",
            "w > 0.0f ? w * part[i * 4 + e] : 0.0f",
            "w * part[i * 4 + e]",
        ),
        Mutant("values past the end", "if (d < DV) {", "if (true) {"),
    ),
    "add_rms_norm": (
        Mutant(
            "no barrier",
            f"sums[simdgroup] = squares;\n  }}\n  {BARRIER}",
            "sums[simdgroup] = squares;\n  }",
            "True",
        ),
        Mutant("elements past the row", "if (e < W) {", "if (true) {"),
        Mutant(
            "one simdgroup's sum",
            "lane < simdgroups ? float(sums[lane])",
            "lane < 1 ? float(sums[lane])",
            "True",
        ),
        Mutant("a weight around zero", "ZERO ? 1.0f : 0.0f", "ZERO ? 0.0f : 1.0f"),
        Mutant("a sum for a mean", "squares / float(W) + fp[0]", "squares + fp[0]"),
        Mutant(
            "the delta not normed", "add[i][j] * inverse * scale", "add[i][j] * scale", "True"
        ),
        Mutant("the delta left out", "sum[i][j] + add[i][j]", "sum[i][j]"),
        Mutant(
            "one row for all",
            "threadgroup_position_in_grid.x) * W",
            "threadgroup_position_in_grid.x) * 0",
        ),
    ),
    "gated_norm": (
        Mutant("no barrier", BARRIER, ""),
        Mutant("elements past the group", "if (at < D) {", "if (true) {"),
        Mutant("the gates' column", "ip[1] + h * D", "h * D"),
        Mutant("the sign of the exponent", "metal::exp(-gate[j])", "metal::exp(gate[j])"),
        Mutant("a lane's own sum", "square = simd_sum(square);", ""),
        Mutant("a simdgroup left out", "i < SIMDS; ++i", "i < SIMDS - 1; ++i"),
        Mutant("a sum for a mean", "square / float(D)", "square"),
        Mutant(
            "a gate too many", "BEFORE ? y[j] * gate[j] : y[j]", "y[j] * gate[j]", "gated_rms"
        ),
    ),
    "mamba2": (
        Mutant("no barrier before staging", BARRIER, ""),
        Mutant("no barrier after staging", f"next_x);\n    {BARRIER}", "next_x);"),
        Mutant("a full chunk at the end", "left < CHUNK ? left : CHUNK", "CHUNK"),
        Mutant("tokens past the end", "there = t < length", "there = true"),
        Mutant("state rows past the end", "live ? row : 0", "row"),
        Mutant("results past the end", "lane == 0 && live", "lane == 0"),
        Mutant("the state not decayed", "g * s[4 * w] + u", "s[4 * w] + u"),
        Mutant("the group of a head", "h / ip[1]", "0"),
        Mutant("what bypasses the state", " + direct * value", "", "mixed"),
        Mutant("a token's own part", "u * scalars[4 * i + 2]", "u"),
        Mutant("the greatest step", "step > greatest ? greatest : step", "step", "mixed"),
        Mutant(
            "the sign of the rate",
            "-metal::exp(float(a[h]))",
            "metal::exp(float(a[h]))",
            "mixed",
        ),
    ),
    "short_conv": (
        Mutant("channels past the end", "channel < channels && first", "first"),
        Mutant("the state's rows", "long(t + K - 1) * channels", "long(t + K) * channels"),
        Mutant("tokens past the end", "} else if (t < length) {", "} else if (true) {"),
        Mutant("not gated before", "seen[4 * i + j] * gate[j]", "seen[4 * i + j]", "gated"),
        Mutant("not gated after", "y[j] *= gate[j];", "", "gated"),
        Mutant("the first tap alone", "weight + i * channels", "weight"),
        Mutant("results past the end", "if (first + i < length) {", "if (true) {"),
        Mutant("the state a token early", "first + i - length;", "first + i - length + 1;"),
        Mutant("the column of the gates", "* width + channels, gate", "* width, gate", "gated"),
    ),
}
"""By kernel."""
