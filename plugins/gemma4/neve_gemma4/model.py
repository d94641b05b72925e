"""Gemma 4: sliding and full attention, MLPs, and the additions of some model sizes.

Parameters are named as in Google's checkpoints, except the experts (see `weights`). All shapes
are token-major: `T` tokens of a step, over all sequences.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, StepBatch
from neve.layers.decoder import DecoderModel, Trunk
from neve.layers.fusion import fused
from neve.layers.mlp import GatedMLP, geglu
from neve.layers.moe import Experts
from neve.layers.norms import RMSNorm
from neve.layers.stream import Normed, Stream
from neve.layers.taps import Readout, Taps

from .attention import attention
from .config import ExpertsConfig, Gemma4Config
from .feed_forward import Router
from .selected_rows import SelectedRows


@fused
def _add_and_scale(x: mx.array, delta: mx.array, scale: mx.array) -> mx.array:
    return (x + delta) * scale


class Block(nn.Module):
    """One layer: attention and an MLP between two norms each, then the per-layer embedding."""

    def __init__(self, config: Gemma4Config, layer: int) -> None:
        super().__init__()
        dims, eps, own_dims = config.hidden_size, config.rms_norm_eps, config.per_layer_dims
        self.self_attn = attention(config, layer)
        self.mlp = GatedMLP(dims, config.mlp_dims(layer), activation="gelu_tanh")
        self.input_layernorm = RMSNorm(dims, eps=eps)
        self.post_attention_layernorm = RMSNorm(dims, eps=eps)
        self.pre_feedforward_layernorm = RMSNorm(dims, eps=eps)
        self.post_feedforward_layernorm = RMSNorm(dims, eps=eps)
        self.layer_scalar = mx.ones((1,))
        if own_dims:
            self.per_layer_input_gate = nn.Linear(dims, own_dims, bias=False)
            self.per_layer_projection = nn.Linear(own_dims, dims, bias=False)
            self.post_per_layer_input_norm = RMSNorm(dims, eps=eps)

    def __call__(
        self, x: mx.array, own_input: mx.array | None, context: ForwardContext
    ) -> mx.array:
        """Return `[T, hidden]` for `x [T, hidden]` and the per-layer input `[T, P]`."""
        attended = self.self_attn(Normed(x, self.input_layernorm), context)
        x, normed = self.pre_feedforward_layernorm.add(
            x, attended, after=self.post_attention_layernorm
        )
        delta = self.post_feedforward_layernorm(self._feed_forward(x, normed))
        if own_input is not None:
            x = x + delta
            delta = self._own(x, own_input)
        return _add_and_scale(x, delta, self.layer_scalar)

    def _feed_forward(self, x: mx.array, normed: mx.array) -> mx.array:
        """Return the addition to the stream `x`, before a norm; `normed` is the MLP's input."""
        return self.mlp(normed)

    def _own(self, x: mx.array, own_input: mx.array) -> mx.array:
        gated = geglu(self.per_layer_input_gate(x), own_input)
        return self.post_per_layer_input_norm(self.per_layer_projection(gated))


class SparseBlock(Block):
    """A layer with experts beside its MLP: both get the same input, and their sum is used."""

    def __init__(self, config: Gemma4Config, layer: int, experts: ExpertsConfig) -> None:
        super().__init__(config, layer)
        dims, eps = config.hidden_size, config.rms_norm_eps
        self.router = Router(dims, experts, eps=eps)
        self.experts = Experts(
            experts.num_experts, dims, experts.hidden_dims, activation=nn.gelu_approx
        )
        self.post_feedforward_layernorm_1 = RMSNorm(dims, eps=eps)
        self.pre_feedforward_layernorm_2 = RMSNorm(dims, eps=eps)
        self.post_feedforward_layernorm_2 = RMSNorm(dims, eps=eps)

    def _feed_forward(self, x: mx.array, normed: mx.array) -> mx.array:
        dense = self.post_feedforward_layernorm_1(self.mlp(normed))
        # the router has a norm of its own
        sparse = self.experts(self.pre_feedforward_layernorm_2(x), *self.router(x))
        return dense + self.post_feedforward_layernorm_2(sparse)


class Gemma4Trunk(Trunk):
    """Embeddings, layers and final norm."""

    def __init__(self, config: Gemma4Config) -> None:
        dims, own_dims = config.hidden_size, config.per_layer_dims
        num_layers, eps = config.num_hidden_layers, config.rms_norm_eps
        layers = [_block(config, i) for i in range(num_layers)]
        super().__init__(config.vocab_size, dims, layers, RMSNorm(dims, eps=eps))
        self._num_own_layers = config.num_own_layers
        if own_dims:
            self.embed_tokens_per_layer = nn.Embedding(
                config.per_layer_vocab_size, num_layers * own_dims
            )
            self.per_layer_model_projection = nn.Linear(dims, num_layers * own_dims, bias=False)
            self.per_layer_projection_norm = RMSNorm(own_dims, eps=eps)

    def embed(self, ids: mx.array) -> mx.array:
        """Return the scaled embeddings `[T, hidden]` of `ids [T]`."""
        x = self.embed_tokens(ids)
        return x * x.shape[-1] ** 0.5

    def __call__(self, batch: StepBatch, context: ForwardContext) -> Readout:
        """Return the hidden states that the step's logits and taps need."""
        x, taps, num_own = self.embed(batch.ids), Taps(batch), self._num_own_layers
        own_inputs, rows = self._own_inputs(batch.ids, x), batch.logit_rows
        first, rest = range(num_own), range(num_own, len(self.layers))
        x = self._run(first, x, own_inputs, context, taps)
        if rows.size == x.shape[0] or taps.beyond(num_own):
            x = self._run(rest, x, own_inputs, context, taps)
            return taps.read_out(Stream(x), self.norm)
        # shared layers keep no cache, so only the rows with logits need computing
        if not rows.size:
            return Readout(x[rows], taps.hidden)
        own_inputs = None if own_inputs is None else own_inputs[rows]
        selected = SelectedRows(context, rows, x.shape[0])
        x = self._run(rest, x[rows], own_inputs, selected, taps)
        return Readout(self.norm(x), taps.hidden)

    def _run(
        self,
        layers: range,
        x: mx.array,
        own_inputs: mx.array | None,
        context: ForwardContext,
        taps: Taps,
    ) -> mx.array:
        for layer in layers:
            own_input = None if own_inputs is None else own_inputs[:, layer]
            x = self.layers[layer](x, own_input, context)
            taps.after(layer, Stream(x))
        return x

    def _own_inputs(self, ids: mx.array, x: mx.array) -> mx.array | None:
        """Return the per-layer inputs `[T, L, P]`, from token ids and embeddings.

        Args:
            ids: `[T]`.
            x: Scaled embeddings of the ids, `[T, hidden]`.
        """
        if "embed_tokens_per_layer" not in self:
            return None
        shape = (x.shape[0], len(self.layers), -1)
        projected = self.per_layer_model_projection(x) * x.shape[-1] ** -0.5
        projected = self.per_layer_projection_norm(projected.reshape(shape))
        own = self.embed_tokens_per_layer(ids).reshape(shape)
        return (projected + own * own.shape[-1] ** 0.5) * 2**-0.5


def _block(config: Gemma4Config, layer: int) -> Block:
    if config.experts is None:
        return Block(config, layer)
    return SparseBlock(config, layer, config.experts)


class Gemma4(DecoderModel):
    """The model with its head, without the other towers."""

    def __init__(self, config: Gemma4Config) -> None:
        trunk = Gemma4Trunk(config)
        super().__init__(trunk, tied=config.tie_word_embeddings, text_tower=True)
        self.softcap = config.softcap

    def head(self, hidden: mx.array) -> mx.array:
        """Return logits `[R, vocab_size]`, float32."""
        logits = super().head(hidden).astype(mx.float32)
        if self.softcap is None:
            return logits
        return self.softcap * mx.tanh(logits / self.softcap)
