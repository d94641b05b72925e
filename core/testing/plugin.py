"""The pytest plugin: `--family`, marks and the fixtures of the conformance suite.

Every pytest run in an environment with neve imports this file, which imports nothing heavy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .subject import Subject


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `pytest --pyargs neve.testing.suite`."""
    group = parser.getgroup("neve")
    group.addoption("--family", help="family that neve's conformance suite checks")
    group.addoption("--checkpoint", help="checkpoint of that family, with its golden.json")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks, and load an optimised BLAS ahead of MLX's own."""
    from ..metal.runtime import blas

    config.addinivalue_line("markers", "mlx: computes with MLX on the CPU")
    config.addinivalue_line("markers", "gpu: needs a Mac GPU or an NVIDIA card")
    blas.preload()


@pytest.fixture(scope="session")
def neve_family(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """Return the family under test and its checkpoint; tests of plugins override this."""
    name = request.config.getoption("--family")
    checkpoint = request.config.getoption("--checkpoint")
    if name is None or checkpoint is None:
        pytest.skip("neither --family and --checkpoint nor a neve_family fixture was given")
    return name, Path(checkpoint)


# per module, because modules of one run may test different families
@pytest.fixture(scope="module")
def subject(neve_family: tuple[str, Path]) -> Subject:
    """Return the family under test with its checkpoint and goldens."""
    from .subject import Subject

    return Subject.of(*neve_family)
