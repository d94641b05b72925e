"""Guarded hook calls: every error of a hook names the family and the hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import HookFailedError, NeveError
from .cache_spec import CacheLayout
from .plan import ColdEligibility, ExecutionPlan, ModelShape, OutputProtocol
from .sidecar import SidecarPolicy

if TYPE_CHECKING:
    import mlx.core as mx

    from .forward import ForwardOutput, StepBatch

ANSWERS: Mapping[str, tuple[type, ...]] = {
    "model_shape": (ModelShape,),
    "declare_cache_groups": (CacheLayout,),
    "build_sidecar_policy": (SidecarPolicy, type(None)),
    "cold_restore_eligibility": (ColdEligibility,),
    "execution_plan": (ExecutionPlan, type(None)),
    "output_protocol": (OutputProtocol, type(None)),
}
"""Hook -> types of its answer; the other hooks return values of the family's own types."""

UNGUARDED = frozenset({"forward"})
"""Hooks called once a step: an error there ends the step with its own name and traceback."""


def guarded(family: str, hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call` with checks of its errors and answers.

    Errors of neve's own tree pass: their messages name the fault in a config or in weights.
    Any other error is a fault of the plugin, or of a checkpoint that the plugin did not check.

    Args:
        family: The family's name.
        hook: The hook's name.
        call: The hook.

    Raises:
        HookFailedError: Raised by the returned function: the hook raised an error outside
            neve's tree, or returned a value of another type than its specification.
    """
    if hook in UNGUARDED:
        return call
    types = ANSWERS.get(hook, (object,))

    def ask(**arguments: Any) -> Any:
        try:
            answer = call(**arguments)
        except NeveError:
            raise
        except Exception as error:
            reason = f"raised {type(error).__name__}: {error}"
            raise HookFailedError(family, hook, reason) from error
        if not isinstance(answer, types):
            right = " or ".join("None" if t is type(None) else t.__name__ for t in types)
            raise HookFailedError(family, hook, f"must return {right}, got {answer!r}")
        return answer

    return ask


def check_layout(family: str, layout: CacheLayout, shape: ModelShape) -> CacheLayout:
    """Return `layout` if it has one route for each layer of the model.

    Raises:
        HookFailedError: The number of routes differs from the number of layers.
    """
    if layout.num_layers != shape.num_layers:
        reason = (
            f"must return one route a layer, got {layout.num_layers} routes for the "
            f"{shape.num_layers} layers of model_shape"
        )
        raise HookFailedError(family, "declare_cache_groups", reason)
    return layout


def check_output(family: str, output: object, batch: StepBatch) -> ForwardOutput:
    """Return the output of `forward` if logits and hidden states match the step.

    Without the check, the sampler would silently draw from logits of other tokens.

    Raises:
        HookFailedError: The output is no `ForwardOutput`, its logits are not `[R, V]`, or its
            hidden states belong to other taps.
    """
    from .forward import ForwardOutput

    if not isinstance(output, ForwardOutput):
        reason = f"must return a ForwardOutput, got {type(output).__name__}"
        raise HookFailedError(family, "forward", reason)
    _check_logits(family, output.logits, batch.logit_rows.shape[0])
    if (batch.taps or output.hidden) and set(output.hidden) != set(batch.taps):
        found, wanted = (
            ", ".join(map(str, taps)) or "no tap" for taps in (output.hidden, batch.taps)
        )
        reason = f"must return hidden states of {wanted}, got {found}"
        raise HookFailedError(family, "forward", reason)
    return output


def _check_logits(family: str, logits: mx.array | None, num_rows: int) -> None:
    if logits is None and num_rows == 0:
        return
    if logits is None or logits.ndim != 2 or logits.shape[0] != num_rows:
        right = "None" if num_rows == 0 else f"[{num_rows}, vocab_size]"
        found = None if logits is None else list(logits.shape)
        reason = f"must return logits {right}, a row for each of batch.logit_rows, got {found}"
        raise HookFailedError(family, "forward", reason)
