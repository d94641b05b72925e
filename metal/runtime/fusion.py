"""Element-wise operations as one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import mlx.core as mx

from . import device, switches

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def fused(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return a function whose element-wise operations are one operation, where that pays.

    On a GPU it does. On a CPU MLX has a C++ compiler make a library of each function for each
    kind of its arguments, once a boot, a second of somebody's first token apiece. So there
    operations stay as they are unless `NEVE_FUSE=on` asks for it: the same numbers up to the
    last bit, and steps of small models are a fifth faster.
    """
    compiled: Any = mx.compile(function, shapeless=True)

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return (compiled if fuses() else function)(*args, **kwargs)

    return call


def fuses() -> bool:
    """Whether element-wise operations are fused; what the environment asks is read once."""
    return _is_asked() or device.is_gpu()


@functools.cache
def _is_asked() -> bool:
    return switches.value_of(switches.FUSE) == "on"
