"""Mixtures of experts: the computation. `routing` chooses the experts and their weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import attrs
import mlx.core as mx
import mlx.nn as nn

from ..metal.runtime import device
from ..metal.runtime.fusion import fused
from .routing import Routing as Routing

Activation: TypeAlias = Callable[[mx.array], mx.array]

BLOCK_ROWS = 16
"""Rows of one expert that a CPU multiplies at once."""

MIN_SORTED_ROWS = 64
"""Below this number, rows are computed in the order of the tokens."""


_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


@attrs.frozen(eq=False)
class Arrangement:
    """Rows, one for each token and chosen expert, in groups that share an expert.

    Attributes:
        tokens: Token at each place, `[G, M]`; any token at a place of padding.
        experts: Expert of each group, `[G]`.
        places: Place of each row among the `G * M`, `[T, k]`; None if rows are in order.
        is_sorted: Whether `experts` ascends.
    """

    tokens: mx.array
    experts: mx.array
    places: mx.array | None
    is_sorted: bool

    def spread(self, x: mx.array) -> mx.array:
        """Return `[G, M, D]`: the tokens `x [T, D]` at their places."""
        if self.places is None:
            chosen = self.experts.size // x.shape[0]
            spread = mx.broadcast_to(x[:, None], (x.shape[0], chosen, x.shape[1]))
            return spread.reshape(-1, 1, x.shape[1])
        return x[self.tokens]

    def collect(self, rows: mx.array, shape: tuple[int, ...]) -> mx.array:
        """Return rows `[G, M, D]` in token order, `[T, k, D]`; `shape` is `[T, k]`."""
        rows = rows.reshape(-1, rows.shape[-1])
        return rows.reshape(*shape, -1) if self.places is None else rows[self.places]


def _as_they_are(chosen: mx.array) -> Arrangement:
    rows = mx.arange(chosen.size) // chosen.shape[1]
    return Arrangement(rows[:, None], chosen.reshape(-1), None, is_sorted=False)


def _sorted(chosen: mx.array) -> Arrangement:
    """Sort rows by expert, so that each expert's weights are read once."""
    experts = chosen.reshape(-1)
    order = mx.argsort(experts)
    places = mx.argsort(order).reshape(chosen.shape)
    tokens = order // chosen.shape[1]
    return Arrangement(tokens[:, None], experts[order], places, is_sorted=True)


def _in_blocks(chosen: mx.array, num_experts: int) -> Arrangement:
    """Put rows of one expert into blocks of `BLOCK_ROWS`, padding each expert's last block.

    Only the device knows how many blocks an expert fills. So there are as many blocks as could
    be needed, and unused blocks at the end compute padding.
    """
    experts = chosen.reshape(-1)
    num_rows = experts.size
    num_blocks = num_rows // BLOCK_ROWS + num_experts
    order = mx.argsort(experts)
    experts = experts[order]
    counts = (experts[:, None] == mx.arange(num_experts)).sum(axis=0)
    blocks = (counts + BLOCK_ROWS - 1) // BLOCK_ROWS
    ends = mx.cumsum(blocks)  # [E]: expert e fills the blocks [ends[e] - blocks[e], ends[e])
    first_row = mx.cumsum(counts) - counts
    rank = mx.arange(num_rows) - first_row[experts]
    place = (ends - blocks)[experts] * BLOCK_ROWS + rank
    tokens = mx.zeros((num_blocks * BLOCK_ROWS,), mx.uint32)
    tokens[place] = order // chosen.shape[1]
    places = mx.zeros((num_rows,), mx.uint32)
    places[order] = place.astype(mx.uint32)
    expert_of = (mx.arange(num_blocks)[:, None] >= ends).sum(axis=1)
    return Arrangement(
        tokens.reshape(num_blocks, BLOCK_ROWS),
        mx.minimum(expert_of, num_experts - 1),
        places.reshape(chosen.shape),
        is_sorted=True,
    )


def _products(x: mx.array, weight: mx.array, arrangement: Arrangement) -> mx.array:
    """Return `[G, M, out]` for the groups `x [G, M, in]` and `weight [E, out, in]`."""
    experts, weight = arrangement.experts, weight.swapaxes(-1, -2)
    if device.is_gpu() or x.dtype == mx.float32:
        is_sorted = arrangement.is_sorted
        return mx.gather_mm(x, weight, rhs_indices=experts, sorted_indices=is_sorted)
    # on a CPU, MLX multiplies gathered matrices only in float32
    if experts.size <= weight.shape[0]:
        return x @ weight[experts]
    wide = mx.gather_mm(*(a.astype(mx.float32) for a in (x, weight)), rhs_indices=experts)
    return wide.astype(x.dtype)


@fused
def _scaled(x: mx.array, factors: mx.array) -> mx.array:
    return (x.astype(mx.float32) * factors).astype(x.dtype)


class ExpertLinear(nn.Module):
    """One linear layer without bias for each expert, stacked.

    Attributes:
        weight: `[E, out, in]`.
    """

    def __init__(self, num_experts: int, input_dims: int, output_dims: int) -> None:
        super().__init__()
        self.weight = mx.zeros((num_experts, output_dims, input_dims))

    def prefers_blocks(self, num_rows: int) -> bool:
        """Return whether `num_rows` rows are computed faster in blocks."""
        enough = max(MIN_SORTED_ROWS, 4 * self.weight.shape[0])
        return num_rows >= enough and not device.is_gpu()

    def __call__(self, x: mx.array, arrangement: Arrangement) -> mx.array:
        """Return `[G, M, out]` for the groups `x [G, M, in]`."""
        return _products(x, self.weight, arrangement)

    def to_quantized(self, *, group_size: int, bits: int, mode: str) -> QuantizedExpertLinear:
        """Return the layer's quantised form."""
        return QuantizedExpertLinear(self.weight, group_size, bits, mode)


class QuantizedExpertLinear(nn.Module):
    """The quantised form of `ExpertLinear`.

    Attributes:
        weight: Packed weights, `[E, out, in * bits / 32]`.
        scales: Scales of groups, `[E, out, in / group_size]`.
        biases: Biases of groups, shaped as `scales`; only in the mode `affine`.
        global_scales: A factor on the outputs of each expert, `[E]`, float32; only for
            checkpoints with such factors, in the mode `nvfp4`.
    """

    def __init__(self, weight: mx.array, group_size: int, bits: int, mode: str) -> None:
        """Quantise `weight [E, out, in]`."""
        super().__init__()
        self.group_size = group_size
        self.bits = bits
        self.mode = mode
        self.weight, self.scales, *biases = mx.quantize(weight, group_size, bits, mode=mode)
        if biases:
            self.biases = biases[0]
        self.freeze()

    def expect_global_scales(self) -> bool:
        """Add a factor for each expert; return whether the mode has such factors."""
        if self.mode != "nvfp4":
            return False
        self.global_scales = mx.ones((self.weight.shape[0],))
        self.freeze()
        return True

    def prefers_blocks(self, num_rows: int) -> bool:
        """Return whether `num_rows` rows justify unpacking the weights of all experts."""
        return num_rows >= 16 * self.weight.shape[0] and not device.is_gpu()

    def __call__(self, x: mx.array, arrangement: Arrangement) -> mx.array:
        """Return `[G, M, out]` for the groups `x [G, M, in]`, in the dtype of `x`."""
        out = self._products(x, arrangement)
        if "global_scales" not in self:
            return out
        # folded into the 8-bit scales of groups, the factor would be rounded
        return _scaled(out, self.global_scales[arrangement.experts][:, None, None])

    def _products(self, x: mx.array, arrangement: Arrangement) -> mx.array:
        packed = self.weight, self.scales, self.get("biases")
        if x.shape[1] > 1:
            weight = mx.dequantize(
                *packed, group_size=self.group_size, bits=self.bits, mode=self.mode
            )
            return _products(x, weight.astype(x.dtype), arrangement)
        return mx.gather_qmm(
            x,
            *packed,
            rhs_indices=arrangement.experts,
            group_size=self.group_size,
            bits=self.bits,
            mode=self.mode,
            sorted_indices=arrangement.is_sorted,
        )


class Experts(nn.Module):
    """MLPs of which a few compute each token.

    `down(activation(gate(x)) * up(x))`, or `down(activation(up(x)))` if not gated.
    """

    def __init__(
        self,
        num_experts: int,
        dims: int,
        hidden_dims: int,
        *,
        gated: bool = True,
        activation: Activation = nn.silu,
    ) -> None:
        super().__init__()
        self._activation = activation
        self._num_experts = num_experts
        if gated:
            self.gate_proj = ExpertLinear(num_experts, dims, hidden_dims)
        self.up_proj = ExpertLinear(num_experts, dims, hidden_dims)
        self.down_proj = ExpertLinear(num_experts, hidden_dims, dims)

    def __call__(self, x: mx.array, chosen: mx.array, weights: mx.array) -> mx.array:
        """Return the weighted sum of the outputs of each token's experts.

        Args:
            x: `[T, dims]`.
            chosen: Experts of each token, `[T, k]`.
            weights: Weights of the chosen experts, `[T, k]`, float32.

        Returns:
            `[T, dims]`, in the dtype of `x`; summed in float32.
        """
        arrangement = self._arrange(chosen)
        spread = arrangement.spread(x)
        hidden = self.up_proj(spread, arrangement)
        if "gate_proj" in self:
            hidden = self._activation(self.gate_proj(spread, arrangement)) * hidden
        else:
            hidden = self._activation(hidden)
        rows = arrangement.collect(self.down_proj(hidden, arrangement), chosen.shape)
        return (rows * weights[..., None]).sum(axis=1).astype(x.dtype)

    def _arrange(self, chosen: mx.array) -> Arrangement:
        layers = [self[name] for name in _PROJECTIONS if name in self]
        if all(layer.prefers_blocks(chosen.size) for layer in layers):
            return _in_blocks(chosen, self._num_experts)
        if chosen.size < MIN_SORTED_ROWS:
            return _as_they_are(chosen)
        return _sorted(chosen)
