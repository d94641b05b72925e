"""Kernels: one body in a subset of the Metal shading language, launched on any back end.

MLX compiles a body at its first launch, for Metal or for CUDA. What differs between the two
stands in a header each; `docs/kernels.md` has the rules that bodies follow.
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
"""Names of a body's compile-time constants and types, and what they are."""

Output: TypeAlias = tuple[tuple[int, ...], mx.Dtype]
"""Shape and dtype of an output."""

_SOURCES = resources.files(__name__.rpartition(".runtime.")[0]).joinpath("src")


def _check_template(_: Any, __: Any, template: Template) -> None:
    for name, value in template.items():
        if isinstance(value, int) and value < 0:
            raise ValueError(f"template constant {name} is {value}, below zero")


@attrs.frozen
class Launch:
    """How a kernel is started.

    Attributes:
        template: Compile-time constants, none below zero, and types. MLX makes CUDA's name of
            a kernel of them, in which there is no room for a minus.
        grid: Threads along x, y and z.
        threadgroup: Threads of a group along x, y and z; together a multiple of 32.
        outputs: What it writes.
    """

    template: Template = attrs.field(validator=_check_template)
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    outputs: Sequence[Output]


@attrs.frozen
class Absent:
    """Names in a body that a launch has nothing for."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs)

    def __iter__(self) -> Iterator[str]:
        return iter(self.inputs + self.outputs)


@attrs.frozen
class Kernel:
    """A kernel body, by the name of its file in `src/`.

    Attributes:
        name: Of the file, without `.metal`.
        inputs: Names of its inputs, arrays of at least one dimension.
        outputs: Names of its outputs.
        absent: Names of further inputs and outputs, which the body is compiled not to touch.
            Each costs the host time at every launch.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    absent: Absent = attrs.field(factory=Absent, kw_only=True)

    @property
    def body(self) -> str:
        """The text of the body.

        Names of absent inputs stand for the first one, and of absent outputs for the last one.
        """
        text = source_text(f"{self.name}.metal")
        if not self.absent:
            return text
        aliases = [f"auto {name} = {self.inputs[0]};" for name in self.absent.inputs]
        aliases += [f"auto {name} = {self.outputs[-1]};" for name in self.absent.outputs]
        # in the first line, so that a compiler's line numbers stay those of the file
        return f"  {' '.join(aliases)}  {text}"

    def without(self, *names: str) -> Kernel:
        """Return the kernel for launches that leave out inputs and outputs.

        Raises:
            ValueError: A name is neither, or the first input or the last output, which are
                always there.
        """
        return _without(self, names)

    def __call__(self, *inputs: mx.array, launch: Launch) -> list[mx.array]:
        """Put a launch into the graph, and return its outputs.

        Raises:
            RuntimeError: No back end runs kernels here.
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
            raise ValueError(f"kernel {kernel.name} is never without {name!r}")
    absent = Absent(
        tuple(name for name in kernel.inputs if name in names),
        tuple(name for name in kernel.outputs if name in names),
    )
    return attrs.evolve(kernel, inputs=inputs, outputs=outputs, absent=absent)


class Backend(Protocol):
    """What runs kernels."""

    @property
    def name(self) -> str:
        """As the counters show it."""
        ...

    @property
    def self_checks(self) -> bool:
        """Whether an operation's first use is compared with its reference."""
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
    """Metal or CUDA, by way of MLX's custom kernels."""

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
        # MLX tells compiled CUDA kernels apart by name and template, not by their inputs' types
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
    """Whether launches are put into a graph, as MLX's back ends do, or run at once."""
    return isinstance(backend(), MlxBackend)


@contextlib.contextmanager
def using(chosen: Backend) -> Generator[None]:
    """Run kernels on a back end of one's own meanwhile, on whatever device."""
    global _override
    before, _override = _override, chosen
    try:
        yield
    finally:
        _override = before


@functools.lru_cache(maxsize=1024)
def ints(*values: int) -> mx.array:
    """Return numbers that a kernel is told, as int32; the same array for the same numbers."""
    array = mx.array(values, mx.int32)
    mx.eval(array)
    return array


@functools.lru_cache(maxsize=1024)
def floats(*values: float) -> mx.array:
    """Return numbers that a kernel is told, as float32; the same array for the same numbers."""
    array = mx.array(values, mx.float32)
    mx.eval(array)
    return array
