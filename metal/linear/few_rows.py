"""Matrix products of few rows: reading the weights takes all the time."""

from __future__ import annotations

import functools

import mlx.core as mx

from ..elementwise.activations import Activation, gated_activation_reference
from ..elementwise.norms import Norm, ProbeNorm
from ..runtime import dispatch
from ..runtime.launch import floats
from .geometry import Geometry, choose_geometry
from .plan import Extras, Operands, launch_of, plan_of


def few_rows_kernel(
    x: mx.array,
    weight: mx.array,
    geometry: Geometry,
    *,
    bias: mx.array | None = None,
    residual: mx.array | None = None,
    norm: Norm | None = None,
    activation: Activation | None = None,
) -> mx.array:
    """Compute a product in one launch with the given geometry.

    Args:
        x: `[M, K]`, at most `geometry.rows` rows.
        weight: `[O, K]`, or `[2 * O, K]` with an activation.
        geometry: Distribution of the work.
        bias: One number for each row of the weight; None for none.
        residual: Addend `[M, O]`; None for none.
        norm: Norm of `x`, with a weight; None for none.
        activation: Function of the first half of the products, by which the second half is
            multiplied; None for none.

    Returns:
        `[M, O]`, in the dtype of `x`.
    """
    operands = Operands(x, weight, bias, residual, norm, activation)
    extras, out_shape = operands.extras, operands.out_shape
    numbers = floats(*out_shape, weight.shape[1], 0.0 if norm is None else norm.eps)
    launch = launch_of(geometry, extras, x.dtype, out_shape)
    return operands.launched(extras.kernel, launch, numbers)


def few_rows_linear_reference(
    x: mx.array,
    weight: mx.array,
    *,
    bias: mx.array | None = None,
    residual: mx.array | None = None,
    norm: Norm | None = None,
) -> mx.array:
    """Return `norm(x) @ weight.T + bias + residual` in MLX operations."""
    x = x if x.ndim == 2 else x.flatten(1)
    x = x if norm is None else norm(x)
    out = x @ weight.T if bias is None else mx.addmm(bias, x, weight.T)
    return out if residual is None else residual + out


def few_rows_linear(
    x: mx.array,
    weight: mx.array,
    *,
    bias: mx.array | None = None,
    residual: mx.array | None = None,
    norm: Norm | None = None,
) -> mx.array:
    """Return `norm(x) @ weight.T + bias + residual`, for few rows.

    The result of a row does not depend on the other rows, nor on their number, to the bit. The
    norm, the sums and the addends are float32; the result is rounded once.

    Args:
        x: `[M, K]`, at most `MAX_ROWS` rows; a row may have several dimensions.
        weight: `[O, K]`, row-major.
        bias: `[O]`.
        residual: `[M, O]`; None for none.
        norm: Norm of `x`, None for none.

    Returns:
        `[M, O]`, in the dtype of `x`.
    """
    out = _by_kernel("few_rows_linear", Operands(x, weight, bias, residual, norm))
    if out is None:
        return few_rows_linear_reference(x, weight, bias=bias, residual=residual, norm=norm)
    return out


def few_rows_gated_reference(
    x: mx.array,
    weight: mx.array,
    activation: Activation,
    *,
    bias: mx.array | None = None,
    norm: Norm | None = None,
) -> mx.array:
    """Return `activation(gate) * up` in MLX operations; see `few_rows_gated`."""
    joined = few_rows_linear_reference(x, weight, bias=bias, norm=norm)
    return gated_activation_reference(joined, activation)


def few_rows_gated(
    x: mx.array,
    weight: mx.array,
    activation: Activation = "silu",
    *,
    bias: mx.array | None = None,
    norm: Norm | None = None,
) -> mx.array:
    """Return `activation(x @ gate.T) * (x @ up.T)` in one launch, for few rows.

    Args:
        x: `[M, K]`, at most `MAX_ROWS` rows.
        weight: `[2 * H, K]`, row-major; the first `H` rows are those of the gate.
        activation: Function that is applied to the gate.
        bias: `[2 * H]`; None for none.
        norm: Norm of `x`, None for none.

    Returns:
        `[M, H]`, in the dtype of `x`.
    """
    operands = Operands(x, weight, bias, norm=norm, activation=activation)
    out = _by_kernel("few_rows_gated", operands)
    if out is None:
        return few_rows_gated_reference(x, weight, activation, bias=bias, norm=norm)
    return out


def _by_kernel(operation: str, operands: Operands) -> mx.array | None:
    """Return the product of the kernel, None if the reference has to run."""
    plan = plan_of(operands)
    check = functools.partial(_check, plan.geometry, operands.extras, operands.x.dtype)
    if dispatch.takes_kernel(operation, plan.variant, check, unsupported=plan.unsupported):
        return operands.launched(plan.kernel, plan.launch, plan.numbers)
    return None


def _check(geometry: Geometry, extras: Extras, dtype: mx.Dtype, seed: int = 1) -> None:
    """Compare a variant of the kernel with the reference on a small product."""
    # one row less than the geometry has; outputs that no threadgroup divides
    num_rows, num_outputs, num_inputs = max(1, geometry.rows - 1), 13, 520
    num_weight_rows = num_outputs if extras.activation is None else 2 * num_outputs
    x, weight, bias, residual, gain = (
        (0.2 * mx.random.normal(shape, key=mx.random.key(seed + i))).astype(dtype)
        for i, shape in enumerate(
            (
                (num_rows, num_inputs),
                (num_weight_rows, num_inputs),
                (num_weight_rows,),
                (num_rows, num_outputs),
                (num_inputs,),
            )
        )
    )
    # an epsilon as large as the mean of squares, so that a mistake shows
    norm = ProbeNorm(gain, 0.04, zero_centred=extras.norm == 2) if extras.norm else None
    given = bias if extras.bias else None
    added = residual if extras.residual else None
    activation = extras.activation
    got = few_rows_kernel(
        x, weight, geometry, bias=given, residual=added, norm=norm, activation=activation
    )
    if activation is None:
        want = few_rows_linear_reference(x, weight, bias=given, residual=added, norm=norm)
    else:
        want = few_rows_gated_reference(x, weight, activation, bias=given, norm=norm)
    dispatch.compare([got], [want])


def _probe(
    dtype: mx.Dtype,
    num_rows: int,
    activation: Activation | None,
    extras: bool,
    norm: int = 0,
    seed: int = 1,
) -> None:
    """Compare the variant for `num_rows` rows; `extras` are the bias and the residual."""
    geometry = choose_geometry(num_rows, (26, 520), dtype.size)
    chosen = Extras(extras, extras and activation is None, activation, norm)
    _check(geometry, chosen, dtype, seed)


dispatch.register(
    "few_rows_linear", _probe, [(1, None, False), (4, None, True), (4, None, False, 1)]
)
dispatch.register("few_rows_gated", _probe, [(1, "silu", True, 2), (8, "gelu_tanh", False)])
