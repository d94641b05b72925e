"""What a product of few rows is compiled for, and how it is launched."""

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
    """What a launch does beside the product.

    Attributes:
        bias: Whether one is added.
        residual: Whether one is added.
        activation: Of gates, by which ups are multiplied.
        norm: Of x before the product: 0 for none, 1 by its weight, 2 by one more than that.
    """

    bias: bool = False
    residual: bool = False
    activation: Activation | None = None
    norm: int = 0

    @property
    def kernel(self) -> Kernel:
        """The kernel with the inputs that it reads."""
        given = (("bias", self.bias), ("residual", self.residual), ("gain", self.norm))
        return _KERNEL.without(*(name for name, there in given if not there))


@attrs.frozen(eq=False)
class Operands:
    """What a product is made of.

    Attributes:
        x: `[M, K]`, or a row of `K` elements in several dimensions.
        weight: `[O, K]`, or `[2 * O, K]` with an activation.
        bias: One number for each row of the weight.
        residual: `[M, O]`.
        norm: Of `x`.
        activation: Of the first half of the products, which the second half is multiplied by.
    """

    x: mx.array
    weight: mx.array
    bias: mx.array | None = None
    residual: mx.array | None = None
    norm: Norm | None = None
    activation: Activation | None = None

    @property
    def gain(self) -> mx.array | None:
        """The norm's weight."""
        return None if self.norm is None else self.norm.weight

    @property
    def extras(self) -> Extras:
        """What is done beside the product."""
        return Extras(
            self.bias is not None,
            self.residual is not None,
            self.activation,
            0 if self.norm is None else 1 + self.norm.zero_centred,
        )

    @property
    def dtypes(self) -> tuple[mx.Dtype | None, ...]:
        """Of all arrays, None where there is none."""
        arrays = (self.x, self.weight, self.bias, self.residual, self.gain)
        return tuple(None if array is None else array.dtype for array in arrays)

    @property
    def out_shape(self) -> tuple[int, int]:
        """`(M, O)`."""
        num_outputs = self.weight.shape[0]
        return self.x.shape[0], num_outputs if self.activation is None else num_outputs // 2

    def launched(self, kernel: Kernel, launch: Launch, numbers: mx.array) -> mx.array:
        """Return what a launch makes of them."""
        arrays = (self.x, self.weight, self.bias, self.residual, self.gain, numbers)
        return kernel(*(array for array in arrays if array is not None), launch=launch)[0]


@attrs.frozen(eq=False)
class Plan:
    """A product, ready to be launched: the same for the same shapes and dtypes.

    Attributes:
        kernel: With the inputs that it reads.
        launch: How it is started.
        numbers: What it is told: rows, outputs, inputs, and the norm's epsilon.
        variant: What it is compiled for.
        geometry: How it is shared out.
        unsupported: Why the kernel cannot take these arguments, None if it can.
    """

    kernel: Kernel
    launch: Launch
    numbers: mx.array
    variant: str
    geometry: Geometry
    unsupported: str | None


def plan_of(operands: Operands) -> Plan:
    """Return how operands are multiplied."""
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
    """Return why the kernel cannot take these arguments, None if it can."""
    num_weight_rows, num_inputs = weight_shape
    if not 0 < num_rows <= MAX_ROWS:
        return f"{num_rows} rows are not 1 to {MAX_ROWS}"
    if num_inputs % 8 or not num_inputs:
        return f"{num_inputs} inputs are not a multiple of 8"
    if extras.activation is not None and num_weight_rows % 2:
        return f"{num_weight_rows} outputs are not gates and as many ups"
    if extras.norm and dtypes[-1] is None:
        return "a norm has no weight"
    kinds = {dtype for dtype in dtypes if dtype is not None}
    if len(kinds) > 1 or kinds.isdisjoint(_DTYPES):
        return f"{', '.join(sorted(map(str, kinds)))} are not one of 32 or 16 bit float"
    return None


def launch_of(
    geometry: Geometry, extras: Extras, dtype: mx.Dtype, out_shape: tuple[int, int]
) -> Launch:
    """Return how a product is started."""
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
