"""The hook specification: each hook is answered by one function of a family's module.

A hook returns a value or an object that does the work: hooks are called at load and once a
step, never per token or layer. pluggy reads this class at run time; pyright checks a plugin
module against it (`hooks: FamilyHooks = plugin_module`). Each docstring says, in this
order: the answer; when and on which thread the hook is called; shapes and units; errors that
the hook may raise; the clause of the conformance suite that checks the hook.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

from .cache_spec import CacheLayout
from .plan import ColdEligibility, ExecutionPlan, FamilyInfo, ModelShape, OutputProtocol
from .sidecar import SidecarPolicy

if TYPE_CHECKING:
    import mlx.nn as nn

    from .forward import ForwardContext, ForwardOutput, StepBatch
    from .weights import Weights

PROJECT = "neve"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class RequiredHooks(Protocol):
    """The hooks that every family's module implements."""

    @hookspec(firstresult=True)
    def family_info(self) -> FamilyInfo:
        """Return the family's name, versions and model types.

        Asked once at discovery, on any thread; must not import MLX.
        No shapes.
        Must not raise.
        Suite: `test_info`.
        """
        ...

    @hookspec(firstresult=True)
    def parse_config(self, raw: Mapping[str, Any]) -> Any:
        """Turn the parsed config.json into the family's own frozen config.

        Asked at load, before a weight is opened, on the loading thread.
        `raw` is a plain mapping; keep no reference to it.
        Raises `ConfigError` with the key's path, `UnsupportedModelError` for a variant that
        the family does not implement.
        Suite: `test_config_round_trip`.
        """
        ...

    @hookspec(firstresult=True)
    def declare_cache_groups(self, config: Any) -> CacheLayout:
        """Declare the cache groups and one route a layer.

        Asked at load, before the pools are sized, on the loading thread.
        Routes in layer order; block sizes in tokens.
        Raises `ConfigError`.
        Suite: `test_layout`.
        """
        ...

    @hookspec(firstresult=True)
    def build_model(self, config: Any, weights: Weights) -> nn.Module:
        """Build the model and take its weights.

        Asked at load, on the engine thread.
        `weights` maps names to lazy arrays; the module's parameters are named as in the
        checkpoint.
        Raises `WeightError`: missing, unexpected or mis-shaped tensors, all of them named.
        Suite: `test_reference_logits`.
        """
        ...


class OptionalHooks(Protocol):
    """The hooks that a family implements where `contract.defaults` does not fit."""

    @hookspec(firstresult=True)
    def model_shape(self, config: Any) -> ModelShape:
        """Return vocabulary, context and layer count.

        Asked at load, on the loading thread; if left out, `vocab_size`,
        `max_position_embeddings` and `num_hidden_layers` of the config are used.
        Counts; the context in tokens.
        Must not raise.
        Suite: `test_layout`.
        """
        ...

    @hookspec(firstresult=True)
    def forward(
        self, model: nn.Module, batch: StepBatch, context: ForwardContext
    ) -> ForwardOutput:
        """Compute the logits of `batch.logit_rows`, and the hidden states at `batch.taps`.

        Asked once a step, on the engine thread; must not wait for the device; if left out, the
        answer is `model(batch, context)`.
        ids `[T]` int32 in; logits `[R, vocab_size]` out, `R = len(batch.logit_rows)`, None
        for `R = 0`; hidden states `[H, D]` of `batch.hidden_rows` for each of `batch.taps`.
        Every logit is a finite number, or its request fails with `NonFiniteLogitsError`.
        Must not raise; an error ends the step and fails its requests.
        Suite: `test_paged_equals_flat`, `test_batched_equals_serial`, `test_taps`.
        """
        ...

    @hookspec(firstresult=True)
    def build_sidecar_policy(self, config: Any, dtype: str) -> SidecarPolicy | None:
        """Return the policy of the state outside the pools that a restored prefix needs.

        Asked at load when the cold tier is on, on the loading thread; by `neve certify`,
        `neve cache` and the suite on any thread; if left out, the windows and the states of
        the cache layout are used.
        Geometry in elements; None for a family without state outside its blocks.
        Must not raise.
        Suite: `test_cold_restore_statement`.
        """
        ...

    @hookspec(firstresult=True)
    def cold_restore_eligibility(self, config: Any | None) -> ColdEligibility:
        """Return whether a prefix of this family may be restored from disk.

        Asked with None when families are listed, with a config at load and by the suite; on
        any thread; if left out, the answer is yes where one sidecar can hold the windows or
        the states of the cache layout.
        No shapes.
        Must not raise.
        Suite: `test_cold_restore_statement`, `test_restored_equals_computed`.
        """
        ...

    @hookspec(firstresult=True)
    def execution_plan(self, config: Any) -> ExecutionPlan:
        """Return the family's execution plan.

        Asked at load, on the loading thread.
        Chunks in tokens.
        Must not raise.
        Suite: `test_layout`.
        """
        ...

    @hookspec(firstresult=True)
    def output_protocol(self, config: Any) -> OutputProtocol:
        """Return the marks with which the family's models end a turn, reason and call tools.

        Asked at load, on the loading thread.
        Token texts.
        Must not raise.
        Suite: `test_info`.
        """
        ...


class FamilyHooks(RequiredHooks, OptionalHooks, Protocol):
    """All hooks."""


def hook_names(hooks: type) -> frozenset[str]:
    """Return the names of the hooks that a class specifies."""
    return frozenset(
        name for name, _ in inspect.getmembers(hooks, inspect.isfunction) if name[0] != "_"
    )


HOOK_NAMES = hook_names(FamilyHooks)
OPTIONAL_HOOKS = hook_names(OptionalHooks)
