"""Run benchmarks and print one table."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from importlib.metadata import version

from neve.metal import blas

from .figures import Figure

BLAS = blas.preload()

# MLX must find the BLAS in front of it
from . import cold, cold_writer, host, hybrids, peers, pool, shapes, soak, windows  # noqa: E402

BENCHMARKS: dict[str, Callable[[], list[Figure]]] = {
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
    "cold_writer": cold_writer.cold_writer,
}


def _line(figure: Figure) -> str:
    mark = "ok" if figure.met else "MISSED"
    value = f"{figure.value:.3g} {figure.unit}"
    return f"| {figure.name} | {value} | {figure.target} | {mark} | {figure.detail} |"


def main() -> None:
    """Run the benchmarks that the command line names, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(BENCHMARKS))
    names = parser.parse_args().names or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]!r} (known: {', '.join(BENCHMARKS)})")
    libraries = ", ".join(f"{name} {version(name)}" for name in ("neve", "mlx", "mlx-lm"))
    print(f"{platform.machine()}, {libraries}, BLAS: {BLAS.reason}\n")
    print("| measured | value | target | | sides |\n|---|---|---|---|---|")
    for name in names:
        for figure in BENCHMARKS[name]():
            print(_line(figure), flush=True)


if __name__ == "__main__":
    main()
