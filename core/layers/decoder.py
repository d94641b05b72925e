"""The common parts of decoders: trunk, head, block, and the loop over layers.

Parameters have the names of most checkpoints; a family with other names sets the class
attributes. A family with a different trunk calls `run_layers` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol, Self

import mlx.core as mx
import mlx.nn as nn

from ..contract.forward import ForwardContext, ForwardOutput, StepBatch
from ..contract.weights import Weights
from .joint import join_layers
from .norms import ResidualNorm
from .stream import Delta, Normed, Stream
from .taps import Readout, Taps

__all__ = ["Block", "DecoderModel", "Layer", "TextTower", "Trunk", "run_layers"]


class Layer(Protocol):
    """One layer of a decoder."""

    def __call__(self, stream: Stream, context: ForwardContext) -> Stream:
        """Return the stream `[T, D]` behind the layer."""
        ...


def run_layers(
    x: mx.array,
    layers: Iterable[Layer],
    norm: ResidualNorm,
    batch: StepBatch,
    context: ForwardContext,
) -> Readout:
    """Run the layers of a decoder and read the hidden states of the step's rows.

    Args:
        x: The stream `[T, D]` in front of the first layer.
        layers: Layers, in order.
        norm: The norm behind the last layer.
        batch: The step's tokens.
        context: The step's context.
    """
    stream, taps = Stream(x), Taps(batch)
    for index, layer in enumerate(layers):
        stream = layer(stream, context)
        taps.after(index, stream)
    return taps.read_out(stream, norm)


class MLP(Protocol):
    """The part of a layer that computes each token separately."""

    def delta(self, x: Normed) -> Delta | mx.array:
        """Return the addition to the stream `[T, D]`, computed or not."""
        ...


class Block(nn.Module):
    """A layer: attention and an MLP, each with a norm before and a residual around.

    Attributes:
        MLP: Name of the MLP in checkpoints.
        NORMS: Names of the norms: of the attention's input, of the MLP's input.
    """

    self_attn: Any
    mlp: Any
    input_layernorm: ResidualNorm
    post_attention_layernorm: ResidualNorm

    MLP: ClassVar[str] = "mlp"
    NORMS: ClassVar[tuple[str, str]] = ("input_layernorm", "post_attention_layernorm")

    def __init__(
        self,
        mixer: nn.Module,
        mlp: MLP,
        norm: Callable[[], ResidualNorm],
        *,
        mixer_name: str = "self_attn",
    ) -> None:
        """Create the layer.

        Args:
            mixer: Attention or a recurrence; called with a `Normed` and the context, returns a
                `Delta`.
            mlp: The MLP, whose `delta` is called with a `Normed`.
            norm: Creates one of the two norms.
            mixer_name: Name of the mixer in checkpoints.
        """
        super().__init__()
        self._mixer_name = mixer_name
        self[mixer_name], self[self.MLP] = mixer, mlp
        for name in self.NORMS:
            self[name] = norm()

    def __call__(self, stream: Stream, context: ForwardContext) -> Stream:
        """Return the stream `[T, D]` behind the layer."""
        stream, normed = stream.norm(self[self.NORMS[0]])
        stream = stream.add(self[self._mixer_name](normed, context))
        stream, normed = stream.norm(self[self.NORMS[1]])
        return stream.add(self[self.MLP].delta(normed))


class Trunk(nn.Module):
    """Embedding, layers and final norm.

    Attributes:
        EMBEDDING: The embedding's name in checkpoints.
        NORM: The final norm's name.
    """

    embed_tokens: nn.Embedding
    layers: list[Any]
    norm: ResidualNorm

    EMBEDDING: ClassVar[str] = "embed_tokens"
    NORM: ClassVar[str] = "norm"

    def __init__(
        self, vocab_size: int, dims: int, layers: Iterable[nn.Module], norm: ResidualNorm
    ) -> None:
        """Create the trunk.

        Args:
            vocab_size: Rows of the embedding.
            dims: Width `D` of the stream.
            layers: Modules with the call of `Layer`.
            norm: The norm behind the last layer.
        """
        super().__init__()
        self[self.EMBEDDING] = nn.Embedding(vocab_size, dims)
        self.layers = [*layers]
        self[self.NORM] = norm

    def embed(self, ids: mx.array) -> mx.array:
        """Return the embeddings `[T, D]` of `ids [T]`."""
        return self[self.EMBEDDING](ids)

    def unembed(self, hidden: mx.array) -> mx.array:
        """Return logits `[R, V]` from the embedding's weights, for hidden states `[R, D]`."""
        return self[self.EMBEDDING].as_linear(hidden)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> Readout:
        """Return the hidden states that the step's logits and taps need."""
        return run_layers(self.embed(batch.ids), self.layers, self[self.NORM], batch, context)


class TextTower(nn.Module):
    """The text model of a checkpoint with towers for other inputs."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.language_model = trunk


class DecoderModel(nn.Module):
    """A trunk with a head: a separate layer, or the embedding's weights.

    Attributes:
        TRUNK: Name of the trunk in checkpoints.
    """

    model: Any
    lm_head: nn.Linear

    TRUNK: ClassVar[str] = "model"

    def __init__(self, trunk: Trunk, *, tied: bool, text_tower: bool = False) -> None:
        """Create the model.

        Args:
            trunk: Embedding, layers and final norm.
            tied: Whether the embedding is also the head.
            text_tower: Checkpoints have the trunk under `language_model`, beside towers for
                other inputs.
        """
        super().__init__()
        self[self.TRUNK] = TextTower(trunk) if text_tower else trunk
        if not tied:
            vocab_size, dims = trunk[trunk.EMBEDDING].weight.shape
            self.lm_head = nn.Linear(dims, vocab_size, bias=False)

    @property
    def trunk(self) -> Trunk:
        """Embedding, layers and final norm."""
        trunk: Trunk | TextTower = self[self.TRUNK]
        return trunk.language_model if isinstance(trunk, TextTower) else trunk

    def with_weights(self, weights: Weights, *, keep_float32: Sequence[str] = ()) -> Self:
        """Load the weights, join layers with one input, and return the model.

        The copy of the embedding in some checkpoints with a tied head is dropped.

        Args:
            weights: Weights under the names of the parameters.
            keep_float32: Last name components of parameters that stay float32.

        Raises:
            WeightError: Tensors are missing, unexpected or mis-shaped; all are named.
        """
        if "lm_head" not in self:
            weights = weights.renamed(lambda name: None if _is_head(name) else name)
        weights.load_into(self, keep_float32=keep_float32)
        join_layers(self)
        return self

    def head(self, hidden: mx.array) -> mx.array:
        """Return logits `[R, V]` of normed hidden states `[R, D]`."""
        return self.lm_head(hidden) if "lm_head" in self else self.trunk.unembed(hidden)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> ForwardOutput:
        """Return logits `[R, V]`, and the hidden states at the step's taps."""
        return self.trunk(batch, context).output(self.head)


def _is_head(name: str) -> bool:
    return name.startswith("lm_head.")
