"""Run benchmarks and print one table."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Iterable
from importlib.metadata import version

from neve.metal.runtime import batching, blas

from .figures import Figure

BLAS = blas.preload()
batching.widen()

# MLX must find the BLAS in front of it
import mlx.core as mx  # noqa: E402

from neve.metal.runtime import device  # noqa: E402

from . import (  # noqa: E402
    cold,
    cold_reader,
    cold_writer,
    gpu_kernels,
    gpu_models,
    host,
    hybrids,
    peers,
    pool,
    shapes,
    soak,
    windows,
)

BENCHMARKS: dict[str, Callable[[], Iterable[Figure]]] = {
    "decode": peers.decode,
    "prefill": peers.prefill,
    "batch": peers.batch,
    "shared": peers.shared,
    "prefix": peers.prefix,
    "pool": pool.pool,
    "host": host.host,
    "soak": soak.soak,
    "hybrids": hybrids.hybrids,
    "windows": windows.windows,
    "shapes": shapes.shapes,
    "restart": cold.restart,
    "capture": cold.capture,
    "restore": cold.restore_beside,
    "cold_reader": cold_reader.cold_reader,
    "cold_writer": cold_writer.cold_writer,
}
ON_A_GPU: dict[str, Callable[[], Iterable[Figure]]] = {
    "gpu_kernels": gpu_kernels.gpu_kernels,
    "gpu_models": gpu_models.gpu_models,
}


def _line(figure: Figure) -> str:
    mark = "ok" if figure.met else "MISSED"
    value = f"{figure.value:.3g} {figure.unit}"
    return f"| {figure.name} | {value} | {figure.target} | {mark} | {figure.detail} |"


def main() -> None:
    """Run the benchmarks that the command line names, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    runnable = BENCHMARKS | (ON_A_GPU if device.is_gpu() else {})
    parser.add_argument("names", nargs="*", help=", ".join(runnable))
    names = parser.parse_args().names or list(BENCHMARKS)
    for name in names:
        if name not in BENCHMARKS | ON_A_GPU:
            known = ", ".join(BENCHMARKS | ON_A_GPU)
            parser.error(f"no benchmark is called {name!r} (known: {known})")
        if name not in runnable:
            parser.error(f"{name} needs a GPU, and MLX computes on {mx.default_device()} here")
    libraries = ", ".join(f"{name} {version(name)}" for name in ("neve", "mlx", "mlx-lm"))
    print(f"{platform.machine()}, {libraries}, BLAS: {BLAS.reason}\n")
    print("| measured | value | target | | sides |\n|---|---|---|---|---|")
    for name in names:
        for figure in runnable[name]():
            print(_line(figure), flush=True)


if __name__ == "__main__":
    main()
