"""Gemma 4: sliding and full attention, MLPs, and what some of its sizes add to them.

Parameters are named as in the makers' checkpoints, save the experts (see `weights`). All
shapes are token-major: `T` tokens of a step, whatever sequences they belong to.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, StepBatch
from neve.layers.moe import Experts

from .attention import Attention
from .config import ExpertsConfig, Gemma4Config
from .feed_forward import MLP, Router
from .selected_rows import SelectedRows


class Block(nn.Module):
    """One layer: attention and MLP between two norms each, then the layer's own embedding."""

    def __init__(self, config: Gemma4Config, layer: int) -> None:
        super().__init__()
        dims, eps, own_dims = config.hidden_size, config.rms_norm_eps, config.per_layer_dims
        self.self_attn = Attention(config, layer)
        self.mlp = MLP(dims, config.mlp_dims(layer))
        self.input_layernorm = nn.RMSNorm(dims, eps=eps)
        self.post_attention_layernorm = nn.RMSNorm(dims, eps=eps)
        self.pre_feedforward_layernorm = nn.RMSNorm(dims, eps=eps)
        self.post_feedforward_layernorm = nn.RMSNorm(dims, eps=eps)
        self.layer_scalar = mx.ones((1,))
        if own_dims:
            self.per_layer_input_gate = nn.Linear(dims, own_dims, bias=False)
            self.per_layer_projection = nn.Linear(own_dims, dims, bias=False)
            self.post_per_layer_input_norm = nn.RMSNorm(dims, eps=eps)

    def __call__(
        self, x: mx.array, own_input: mx.array | None, context: ForwardContext
    ) -> mx.array:
        """Return `[T, hidden]` for `x [T, hidden]` and the layer's own input `[T, P]`."""
        attended = self.self_attn(self.input_layernorm(x), context)
        x = x + self.post_attention_layernorm(attended)
        x = x + self.post_feedforward_layernorm(self._feed_forward(x))
        if own_input is not None:
            x = x + self._own(x, own_input)
        return x * self.layer_scalar

    def _feed_forward(self, x: mx.array) -> mx.array:
        return self.mlp(self.pre_feedforward_layernorm(x))

    def _own(self, x: mx.array, own_input: mx.array) -> mx.array:
        gated = nn.gelu_approx(self.per_layer_input_gate(x)) * own_input
        return self.post_per_layer_input_norm(self.per_layer_projection(gated))


class SparseBlock(Block):
    """A layer with experts beside its MLP: both see the same input, and are added."""

    def __init__(self, config: Gemma4Config, layer: int, experts: ExpertsConfig) -> None:
        super().__init__(config, layer)
        dims, eps = config.hidden_size, config.rms_norm_eps
        self.router = Router(dims, experts, eps=eps)
        self.experts = Experts(
            experts.num_experts, dims, experts.hidden_dims, activation=nn.gelu_approx
        )
        self.post_feedforward_layernorm_1 = nn.RMSNorm(dims, eps=eps)
        self.pre_feedforward_layernorm_2 = nn.RMSNorm(dims, eps=eps)
        self.post_feedforward_layernorm_2 = nn.RMSNorm(dims, eps=eps)

    def _feed_forward(self, x: mx.array) -> mx.array:
        dense = self.post_feedforward_layernorm_1(super()._feed_forward(x))
        # the router has a norm of its own
        sparse = self.experts(self.pre_feedforward_layernorm_2(x), *self.router(x))
        return dense + self.post_feedforward_layernorm_2(sparse)


class Trunk(nn.Module):
    """Embeddings, layers and final norm."""

    def __init__(self, config: Gemma4Config) -> None:
        super().__init__()
        dims, own_dims = config.hidden_size, config.per_layer_dims
        num_layers = config.num_hidden_layers
        self._num_own_layers = config.num_own_layers
        self.embed_tokens = nn.Embedding(config.vocab_size, dims)
        self.layers = [_block(config, i) for i in range(num_layers)]
        self.norm = nn.RMSNorm(dims, eps=config.rms_norm_eps)
        if own_dims:
            self.embed_tokens_per_layer = nn.Embedding(
                config.per_layer_vocab_size, num_layers * own_dims
            )
            self.per_layer_model_projection = nn.Linear(dims, num_layers * own_dims, bias=False)
            self.per_layer_projection_norm = nn.RMSNorm(own_dims, eps=config.rms_norm_eps)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return the normed hidden states `[R, hidden]` of the rows that want logits."""
        x = self.embed_tokens(batch.ids)
        x = x * x.shape[-1] ** 0.5
        own_inputs, rows = self._own_inputs(batch.ids, x), batch.logit_rows
        first, rest = range(self._num_own_layers), range(self._num_own_layers, len(self.layers))
        x = self._run(first, x, own_inputs, context)
        if rows.size == x.shape[0]:
            return self.norm(self._run(rest, x, own_inputs, context)[rows])
        # the rest keeps nothing, so of the step it owes only the rows that are asked for
        if not rows.size:
            return x[rows]
        own_inputs = None if own_inputs is None else own_inputs[rows]
        selected = SelectedRows(context, rows, x.shape[0])
        return self.norm(self._run(rest, x[rows], own_inputs, selected))

    def _run(
        self,
        layers: range,
        x: mx.array,
        own_inputs: mx.array | None,
        context: ForwardContext,
    ) -> mx.array:
        for layer in layers:
            own_input = None if own_inputs is None else own_inputs[:, layer]
            x = self.layers[layer](x, own_input, context)
        return x

    def _own_inputs(self, ids: mx.array, x: mx.array) -> mx.array | None:
        """Return what each layer gets of its own, `[T, L, P]`: of the token and its embedding.

        Args:
            ids: `[T]`.
            x: Their embeddings `[T, hidden]`, scaled.
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


class Towers(nn.Module):
    """What checkpoints call `model`: here the text model alone, without the towers."""

    def __init__(self, config: Gemma4Config) -> None:
        super().__init__()
        self.language_model = Trunk(config)


class Gemma4(nn.Module):
    """The model with its head."""

    def __init__(self, config: Gemma4Config) -> None:
        super().__init__()
        self.model = Towers(config)
        self.softcap = config.softcap
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return logits `[R, vocab_size]`, float32."""
        text = self.model.language_model
        hidden = text(batch, context)
        head = self.lm_head if "lm_head" in self else text.embed_tokens.as_linear
        logits = head(hidden).astype(mx.float32)
        if self.softcap is None:
            return logits
        return self.softcap * mx.tanh(logits / self.softcap)
