"""What holds for every test of the core."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from structlog.testing import capture_logs

from neve.log import configure

# a busy machine is no fault of the code: time is never a criterion
settings.register_profile("neve", deadline=None)
settings.load_profile("neve")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Log as after the first `neve.load`, before every test and after the last one.

    `capture_logs` in a process that has not configured structlog leaves it configured with
    its defaults, which write to stdout.
    """
    configure()
    yield
    configure()


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """Capture every event at or above INFO."""
    configure(logging.INFO)
    with capture_logs() as events:
        yield events
