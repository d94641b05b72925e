"""Variants and launches of products of few rows."""

from __future__ import annotations

import functools

import attrs
import mlx.core as mx

from ..elementwise.activations import Activation
from ..elementwise.norms import Norm
from ..runtime.launch import Kernel, Launch, floats
from .geometry import MAX_ROWS, Geometry, choose_geometry

_KERNEL = Kernel("few_rows_linear", ("x", "weight", "bias", "residual", "gain", "fp"), ("out",))
_CODES: dict[Activation | None, int] = {None: 0, "silu": 1, "gelu_tanh": 2}
_DTYPES = (mx.float32, mx.float16, mx.bfloat16)


@attrs.frozen
class Extras:
    """Work of a launch beside the product.

    Attributes:
        bias: Whether a bias is added.
        residual: Whether a residual is added.
        activation: Function of the gate, by which the up projection is multiplied; None for
            none.
        norm: Norm of `x` before the product: 0 for none, 1 with factor `weight`, 2 with factor
            `1 + weight`.
    """

    bias: bool = False
    residual: bool = False
    activation: Activation | None = None
    norm: int = 0

    @property
    def kernel(self) -> Kernel:
        """The kernel without the inputs that this variant does not read."""
        given = (("bias", self.bias), ("residual", self.residual), ("gain", self.norm))
        return _KERNEL.without(*(name for name, there in given if not there))


@attrs.frozen(eq=False)
class Operands:
    """Operands of a product.

    Attributes:
        x: `[M, K]`, or a row of `K` elements in several dimensions.
        weight: `[O, K]`, or `[2 * O, K]` with an activation.
        bias: One number for each row of the weight; None for none.
        residual: Addend `[M, O]`; None for none.
        norm: Norm of `x`; None for none.
        activation: Function of the first half of the products, by which the second half is
            multiplied; None for none.
    """

    x: mx.array
    weight: mx.array
    bias: mx.array | None = None
    residual: mx.array | None = None
    norm: Norm | None = None
    activation: Activation | None = None

    @property
    def gain(self) -> mx.array | None:
        """The weight of the norm."""
        return None if self.norm is None else self.norm.weight

    @property
    def extras(self) -> Extras:
        """Work of the launch beside the product."""
        return Extras(
            self.bias is not None,
            self.residual is not None,
            self.activation,
            0 if self.norm is None else 1 + self.norm.zero_centred,
        )

    @property
    def dtypes(self) -> tuple[mx.Dtype | None, ...]:
        """Dtypes of all operands, None for absent ones."""
        arrays = (self.x, self.weight, self.bias, self.residual, self.gain)
        return tuple(None if array is None else array.dtype for array in arrays)

    @property
    def out_shape(self) -> tuple[int, int]:
        """Shape `(M, O)` of the result."""
        num_outputs = self.weight.shape[0]
        return self.x.shape[0], num_outputs if self.activation is None else num_outputs // 2

    def launched(self, kernel: Kernel, launch: Launch, numbers: mx.array) -> mx.array:
        """Launch a kernel on the operands, and return the product."""
        arrays = (self.x, self.weight, self.bias, self.residual, self.gain, numbers)
        return kernel(*(array for array in arrays if array is not None), launch=launch)[0]


@attrs.frozen(eq=False)
class Plan:
    """Everything about a launch that depends on shapes and dtypes, not on values.

    Attributes:
        kernel: The kernel with the inputs of this variant.
        launch: Grid, threadgroup, template and outputs.
        numbers: Rows, outputs, inputs, and epsilon of the norm, as the kernel reads them.
        variant: Key of the compiled kernel.
        geometry: Distribution of the work.
        unsupported: Why the kernel cannot take the arguments, None if it can.
    """

    kernel: Kernel
    launch: Launch
    numbers: mx.array
    variant: str
    geometry: Geometry
    unsupported: str | None


def plan_of(operands: Operands) -> Plan:
    """Return the plan for operands; equal shapes and dtypes share one plan."""
    norm = operands.norm
    return _plan(
        operands.x.shape[0],
        (operands.weight.shape[0], operands.weight.shape[1]),
        operands.dtypes,
        operands.extras,
        0.0 if norm is None else norm.eps,
    )


@functools.lru_cache(maxsize=4096)
def _plan(
    num_rows: int,
    weight_shape: tuple[int, int],
    dtypes: tuple[mx.Dtype | None, ...],
    extras: Extras,
    eps: float,
) -> Plan:
    num_outputs, num_inputs = weight_shape
    dtype = dtypes[0] or mx.float32
    geometry = choose_geometry(min(max(num_rows, 1), MAX_ROWS), weight_shape, dtype.size)
    reason = _unsupported(num_rows, (num_outputs, num_inputs), dtypes, extras)
    if extras.activation is not None:
        num_outputs //= 2
    return Plan(
        extras.kernel,
        launch_of(geometry, extras, dtype, (num_rows, num_outputs)),
        floats(num_rows, num_outputs, num_inputs, eps),
        f"{dtype} {geometry} {extras}",
        geometry,
        reason,
    )


def _unsupported(
    num_rows: int,
    weight_shape: tuple[int, int],
    dtypes: tuple[mx.Dtype | None, ...],
    extras: Extras,
) -> str | None:
    """Return why the kernel cannot take the arguments, None if it can."""
    num_weight_rows, num_inputs = weight_shape
    if not 0 < num_rows <= MAX_ROWS:
        return f"{num_rows} rows are not 1 to {MAX_ROWS}"
    if num_inputs % 8 or not num_inputs:
        return f"{num_inputs} inputs are not a multiple of 8"
    if extras.activation is not None and num_weight_rows % 2:
        return f"{num_weight_rows} outputs do not divide into gate and up projection"
    if extras.norm and dtypes[-1] is None:
        return "a norm has no weight"
    kinds = {dtype for dtype in dtypes if dtype is not None}
    if len(kinds) > 1 or kinds.isdisjoint(_DTYPES):
        return f"{', '.join(sorted(map(str, kinds)))} are not one float dtype of 32 or 16 bits"
    return None


def launch_of(
    geometry: Geometry, extras: Extras, dtype: mx.Dtype, out_shape: tuple[int, int]
) -> Launch:
    """Return the parameters of the launch."""
    gated = extras.activation is not None
    outputs = geometry.weight_rows // 2 if gated else geometry.weight_rows
    simdgroups = geometry.simdgroups
    num_groups = -(-out_shape[1] // (outputs * (simdgroups // geometry.split)))
    return Launch(
        template={
            "T": dtype,
            "M": geometry.rows,
            "R": outputs,
            "S": geometry.split,
            "U": geometry.unroll,
            "G": simdgroups,
            "BIAS": extras.bias,
            "RESIDUAL": extras.residual,
            "ACT": _CODES[extras.activation],
            "NORM": extras.norm,
        },
        grid=(32 * simdgroups * num_groups, 1, 1),
        threadgroup=(32 * simdgroups, 1, 1),
        outputs=[(out_shape, dtype)],
    )
