"""Kernels: one body in a subset of the Metal shading language, launched on any back end.

MLX compiles a body at its first launch, for Metal or for CUDA. A header for each language holds
the differences; `docs/kernels.md` has the rules for bodies.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Protocol, TypeAlias

import attrs
import mlx.core as mx

from . import device, switches

Template: TypeAlias = Mapping[str, mx.Dtype | int | bool]
"""Names of a body's compile-time constants and types -> their values."""

Output: TypeAlias = tuple[tuple[int, ...], mx.Dtype]
"""Shape and dtype of an output."""

_SOURCES = resources.files(__name__.rpartition(".runtime.")[0]).joinpath("src")


def _check_template(_: Any, __: Any, template: Template) -> None:
    for name, value in template.items():
        if isinstance(value, int) and value < 0:
            raise ValueError(f"template constant {name} is {value}, below zero")


@attrs.frozen
class Launch:
    """Parameters of a launch.

    Attributes:
        template: Compile-time constants, none below zero, and types. MLX puts the constants
            into the CUDA name of the kernel, which cannot contain a minus sign.
        grid: Threads along x, y and z.
        threadgroup: Threads of a group along x, y and z; their product is a multiple of 32.
        outputs: Shapes and dtypes of the outputs.
    """

    template: Template = attrs.field(validator=_check_template)
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    outputs: Sequence[Output]


@attrs.frozen
class Absent:
    """Inputs and outputs of a body that a launch leaves out."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs)

    def __iter__(self) -> Iterator[str]:
        return iter(self.inputs + self.outputs)


@attrs.frozen
class Kernel:
    """A kernel body, identified by its file in `src/`.

    Attributes:
        name: Name of the file, without `.metal`.
        inputs: Names of the inputs, arrays of at least one dimension.
        outputs: Names of the outputs.
        absent: Names of inputs and outputs that this variant of the body does not touch. Every
            input and output costs host time at every launch.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    absent: Absent = attrs.field(factory=Absent, kw_only=True)

    @property
    def body(self) -> str:
        """The text of the body.

        The name of an absent input is an alias of the first input, the name of an absent
        output an alias of the last output.
        """
        text = source_text(f"{self.name}.metal")
        if not self.absent:
            return text
        aliases = [f"auto {name} = {self.inputs[0]};" for name in self.absent.inputs]
        aliases += [f"auto {name} = {self.outputs[-1]};" for name in self.absent.outputs]
        # in the first line: line numbers of compiler messages stay those of the file
        return f"  {' '.join(aliases)}  {text}"

    def without(self, *names: str) -> Kernel:
        """Return the variant of the kernel without these inputs and outputs.

        Raises:
            ValueError: A name is unknown, or names the first input or the last output, which
                every variant has.
        """
        return _without(self, names)

    def __call__(self, *inputs: mx.array, launch: Launch) -> list[mx.array]:
        """Put a launch into the graph, and return its outputs.

        Raises:
            RuntimeError: No back end runs kernels on the default device.
        """
        chosen = backend()
        if chosen is None:
            raise RuntimeError(f"kernel {self.name}: the default device runs no kernels")
        return chosen.launch(self, inputs, launch)


@functools.cache
def _without(kernel: Kernel, names: tuple[str, ...]) -> Kernel:
    inputs, outputs = (
        tuple(name for name in there if name not in names)
        for there in (kernel.inputs, kernel.outputs)
    )
    for name in names:
        if name not in kernel.inputs + kernel.outputs:
            raise ValueError(f"kernel {kernel.name} has no input or output {name!r}")
        if name in (kernel.inputs[0], kernel.outputs[-1]):
            raise ValueError(f"kernel {kernel.name} cannot leave out {name!r}")
    absent = Absent(
        tuple(name for name in kernel.inputs if name in names),
        tuple(name for name in kernel.outputs if name in names),
    )
    return attrs.evolve(kernel, inputs=inputs, outputs=outputs, absent=absent)


class Backend(Protocol):
    """A back end that runs kernels."""

    @property
    def name(self) -> str:
        """Name in the counters."""
        ...

    @property
    def self_checks(self) -> bool:
        """Whether the first use of an operation is compared with its reference."""
        ...

    def launch(
        self, kernel: Kernel, inputs: Sequence[mx.array], launch: Launch
    ) -> list[mx.array]:
        """Put a launch into the graph, and return its outputs."""
        ...


@functools.cache
def source_text(name: str) -> str:
    """Return the text of a file in `src/`."""
    return _SOURCES.joinpath(name).read_text(encoding="utf-8")


class MlxBackend:
    """Metal or CUDA, through MLX's custom kernels."""

    self_checks = True

    def __init__(self, name: str, make: Callable[..., Any], header: str) -> None:
        self.name = name
        self._make = make
        self._header = header
        self._functions: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def launch(
        self, kernel: Kernel, inputs: Sequence[mx.array], launch: Launch
    ) -> list[mx.array]:
        """Put a launch into the graph, and return its outputs."""
        function = self._function(kernel, tuple(x.dtype for x in inputs))
        return function(
            inputs=list(inputs),
            template=list(launch.template.items()),
            grid=launch.grid,
            threadgroup=launch.threadgroup,
            output_shapes=[shape for shape, _ in launch.outputs],
            output_dtypes=[dtype for _, dtype in launch.outputs],
        )

    def _function(self, kernel: Kernel, dtypes: tuple[mx.Dtype, ...]) -> Callable[..., Any]:
        # MLX identifies a compiled CUDA kernel by name and template, not by input dtypes
        key = (kernel.name, kernel.absent, dtypes)
        if key not in self._functions:
            words = [f"no_{name}" for name in kernel.absent]
            words += [str(d).removeprefix("mlx.core.") for d in dtypes]
            suffix = "_".join(words)
            self._functions[key] = self._make(
                name=f"neve_{kernel.name}_{suffix}",
                input_names=list(kernel.inputs),
                output_names=list(kernel.outputs),
                source=kernel.body,
                header=source_text(self._header),
            )
        return self._functions[key]


@functools.cache
def _mlx_backend() -> MlxBackend | None:
    if mx.metal.is_available():
        return MlxBackend("metal", mx.fast.metal_kernel, "mkx_metal.h")
    if mx.cuda.is_available():
        return MlxBackend("cuda", mx.fast.cuda_kernel, "mkx_cuda.h")
    return None


_override: Backend | None = None


def backend() -> Backend | None:
    """Return the back end that runs kernels now, None if MLX operations replace kernels.

    None on a CPU, and on a GPU with `NEVE_KERNELS=off`.
    """
    if _override is not None:
        return _override
    if not device.is_gpu() or switches.value_of(switches.KERNELS) == "off":
        return None
    return _mlx_backend()


def builds_graphs() -> bool:
    """Whether launches are lazy parts of a graph, as in MLX's back ends, or run at once."""
    return isinstance(backend(), MlxBackend)


@contextlib.contextmanager
def using(chosen: Backend) -> Generator[None]:
    """Run kernels on the given back end within the context, on any device."""
    global _override
    before, _override = _override, chosen
    try:
        yield
    finally:
        _override = before


@functools.lru_cache(maxsize=1024)
def ints(*values: int) -> mx.array:
    """Return int32 parameters of a kernel; equal numbers share one array."""
    array = mx.array(values, mx.int32)
    mx.eval(array)
    return array


@functools.lru_cache(maxsize=1024)
def floats(*values: float) -> mx.array:
    """Return float32 parameters of a kernel; equal numbers share one array."""
    array = mx.array(values, mx.float32)
    mx.eval(array)
    return array
