"""One family's answers, behind typed methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from ..errors import HookMissingError
from . import defaults
from .guard import check_layout, check_output
from .plan import ExecutionPlan, FamilyInfo, OutputProtocol

if TYPE_CHECKING:
    import mlx.nn as nn

    from .cache_spec import CacheLayout
    from .forward import ForwardContext, ForwardOutput, StepBatch
    from .plan import ColdEligibility, ModelShape
    from .sidecar import SidecarPolicy
    from .weights import Weights


@attrs.frozen
class Family:
    """One plugin's answers, behind typed methods; `contract.hooks` specifies each of them.

    Each method raises `HookFailedError` where `contract.guard` refuses an answer or an error.
    """

    info: FamilyInfo
    version: str
    _ask: Mapping[str, Callable[..., Any]] = attrs.field(repr=False)

    @property
    def name(self) -> str:
        """The family's name."""
        return self.info.name

    def parse_config(self, raw: Mapping[str, Any]) -> Any:
        """Return the family's frozen config."""
        return self._ask["parse_config"](raw=raw)

    def model_shape(self, config: Any) -> ModelShape:
        """Return vocabulary, context and layer count."""
        if "model_shape" in self._ask:
            return self._ask["model_shape"](config=config)
        try:
            return defaults.model_shape(config)
        except AttributeError as error:
            reason = (
                f"the plugin leaves out model_shape, and the config lacks an attribute: {error}"
            )
            raise HookMissingError(self.name, reason, self.info.model_types) from error

    def declare_cache_groups(self, config: Any) -> CacheLayout:
        """Return the cache layout, which has one route a layer."""
        layout = self._ask["declare_cache_groups"](config=config)
        return check_layout(self.name, layout, self.model_shape(config))

    def build_model(self, config: Any, weights: Weights) -> nn.Module:
        """Return the model with its weights."""
        return self._ask["build_model"](config=config, weights=weights)

    def forward(
        self, model: nn.Module, batch: StepBatch, context: ForwardContext
    ) -> ForwardOutput:
        """Return logits `[R, V]`, and the hidden states at the step's taps."""
        ask = self._ask.get("forward")
        if ask is None:
            output: object = model(batch, context)
        else:
            output = ask(model=model, batch=batch, context=context)
        return check_output(self.name, output, batch)

    def build_sidecar_policy(self, config: Any, dtype: str) -> SidecarPolicy | None:
        """Return the sidecar policy of a compute dtype, None without one."""
        if "build_sidecar_policy" in self._ask:
            return self._ask["build_sidecar_policy"](config=config, dtype=dtype)
        return defaults.sidecar_policy(self.declare_cache_groups(config), dtype)

    def cold_restore_eligibility(self, config: Any | None = None) -> ColdEligibility:
        """Return whether prefixes may come back from disk."""
        if "cold_restore_eligibility" in self._ask:
            return self._ask["cold_restore_eligibility"](config=config)
        known = config is not None
        return defaults.eligibility(self.declare_cache_groups(config) if known else None)

    def execution_plan(self, config: Any) -> ExecutionPlan:
        """Return the family's plan; the default plan without such a hook."""
        ask = self._ask.get("execution_plan")
        return (ask and ask(config=config)) or ExecutionPlan()

    def output_protocol(self, config: Any) -> OutputProtocol:
        """Return the family's output protocol; an empty one without such a hook."""
        ask = self._ask.get("output_protocol")
        return (ask and ask(config=config)) or OutputProtocol()
