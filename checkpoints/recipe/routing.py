"""Keeps the experts of a mixture evenly used during training."""

import torch
from torch import nn
from torch.nn import functional
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRouter
from transformers.models.lfm2_moe.modeling_lfm2_moe import Lfm2MoeSparseMoeBlock
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHTopkRouter
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeTopKRouter

BIAS_STEP = 2e-3


class Routing:
    """What the routers of some modules chose in the last forward pass.

    Routers with a correction bias are balanced by moving it after a step, the others by an
    auxiliary loss.
    """

    def __init__(self, *modules: nn.Module) -> None:
        self._losses: list[torch.Tensor] = []
        self._choices: list[tuple[torch.Tensor, torch.Tensor]] = []  # bias [E], indices [T, k]
        for module in modules:
            for part in module.modules():
                self._watch(part)

    def _watch(self, part: nn.Module) -> None:
        if isinstance(part, Gemma4TextRouter):
            part.register_forward_hook(lambda _, __, out: self._see(out[0], out[2]))
        elif isinstance(part, Qwen3_5MoeTopKRouter):
            part.register_forward_hook(
                lambda _, __, out: self._see(out[0].float().softmax(-1), out[2])
            )
        elif isinstance(part, NemotronHTopkRouter):
            self._watch_bias(part, part.e_score_correction_bias)
        elif isinstance(part, Lfm2MoeSparseMoeBlock):
            self._watch_bias(part.gate, part.expert_bias)

    def _watch_bias(self, router: nn.Module, bias: torch.Tensor) -> None:
        router.register_forward_hook(lambda _, __, out: self._choices.append((bias, out[2])))

    def _see(self, probabilities: torch.Tensor, indices: torch.Tensor) -> None:
        num_experts = probabilities.shape[-1]
        chosen = functional.one_hot(indices, num_experts).sum(1).float()
        share = chosen.mean(0) / indices.shape[-1]
        self._losses.append(num_experts * (share * probabilities.float().mean(0)).sum())

    def clear(self) -> None:
        """Forget the last forward pass."""
        self._losses.clear()
        self._choices.clear()

    def balance_loss(self) -> torch.Tensor | float:
        """Return the mean auxiliary loss of the routers without a bias; 1 is even use."""
        return torch.stack(self._losses).mean() if self._losses else 0.0

    @torch.no_grad()
    def move_biases(self, rate: float) -> None:
        """Make rarely chosen experts a little more likely, and often chosen ones less."""
        for bias, indices in self._choices:
            counts = torch.bincount(indices.reshape(-1), minlength=bias.numel()).float()
            bias.add_(torch.sign(counts.mean() - counts) * BIAS_STEP * rate)
            bias.sub_(bias.mean())
