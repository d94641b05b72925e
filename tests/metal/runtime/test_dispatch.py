from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest

from neve.metal.runtime import dispatch, launch
from neve.metal.runtime.launch import Kernel, Launch


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be registered, and forget what a test registers."""
    monkeypatch.setattr(dispatch, "_OPERATIONS", {})


def test_dispatches_are_counted_by_operation_and_variant() -> None:
    """Which variant of an operation ran is visible, and reading it changes nothing."""
    before = dispatch.counts().get("test_op:slow", 0)
    dispatch.record("test_op", "slow")
    dispatch.record("test_op", "slow")
    dispatch.counts()["test_op:slow"] = -1

    assert dispatch.counts()["test_op:slow"] == before + 2


@pytest.mark.usefixtures("operations")
def test_an_operation_is_probed_in_every_variant_and_dtype() -> None:
    """PK-1: what is registered is compared with its reference in all of its variants."""
    seen = []
    dispatch.register("op", lambda *variant, seed: seen.append((*variant, seed)), [(8,), (16,)])
    for probe in dispatch.registered()["op"].probes():
        probe(seed=3)

    assert seen == [(dtype, n, 3) for n in (8, 16) for dtype in dispatch.DTYPES]


@pytest.mark.usefixtures("operations")
def test_a_probe_is_named_by_what_it_compares() -> None:
    """Operation, dtype and variant make the name that a test shows."""
    dispatch.register("op", lambda *_, seed: None, [("silu", 4)])
    names = [str(probe) for probe in dispatch.registered()["op"].probes()]

    assert names == ["op-float32-silu-4", "op-float16-silu-4", "op-bfloat16-silu-4"]


@pytest.mark.usefixtures("operations")
def test_a_name_is_registered_once() -> None:
    """Two operations of one name would hide each other from the tests."""
    dispatch.register("op", lambda *_, seed: None)

    with pytest.raises(ValueError, match="op is registered twice"):
        dispatch.register("op", lambda *_, seed: None)


def test_numbers_that_are_off_or_missing_are_no_match() -> None:
    """PK-1: a comparison accepts neither a wrong element nor NaN."""
    want = mx.ones((4,), mx.bfloat16)
    dispatch.compare([want * 1.01], [want])

    with pytest.raises(dispatch.KernelMismatchError, match="output 0 differs"):
        dispatch.compare([want * 1.2], [want])
    with pytest.raises(dispatch.KernelMismatchError, match="differs by nan"):
        dispatch.compare([want * float("nan")], [want])


class Checked:
    """A back end of which each operation's first use is checked."""

    name = "checked"
    self_checks = True

    def launch(
        self, kernel: Kernel, inputs: Sequence[mx.array], launch: Launch
    ) -> list[mx.array]:
        raise NotImplementedError


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Return `takes_kernel` of a process that has decided nothing yet."""
    for name, empty in (("_VERDICTS", {}), ("_SAID", set()), ("_COUNTS", dispatch.Counter())):
        monkeypatch.setattr(dispatch, name, empty)

    def decide(check: Callable[[], None], variant: Any = 1, **options: Any) -> bool:
        with launch.using(Checked()):
            return dispatch.takes_kernel("op", variant, check, **options)

    return decide


def refuse() -> None:
    raise RuntimeError("In file a.metal:\nsrc.cu(3): error: no such thing\nand much more")


def forbidden() -> None:
    raise AssertionError("must not run")


def test_a_kernel_that_fails_its_check_is_left_alone(
    ask: Callable[..., bool], caplog: pytest.LogCaptureFixture
) -> None:
    """PK-1: its reference runs from then on; one line says why, and the counters show it."""
    tries: list[int] = []

    def check() -> None:
        tries.append(1)
        refuse()

    with caplog.at_level(logging.WARNING, "neve.metal"):
        taken = [ask(check) for _ in range(3)]

    assert (taken, len(tries)) == ([False] * 3, 1)
    assert dispatch.counts() == {"op:fallback": 3}
    (message,) = caplog.messages
    assert message.startswith("op runs as MLX operations: the kernel failed the self-check")
    assert message.endswith(" (src.cu(3): error: no such thing)")


def test_each_variant_is_checked_once(ask: Callable[..., bool]) -> None:
    """PK-1: what is compiled anew is checked anew, and one's failure is not another's."""
    checked: list[Any] = []
    for variant in ("a", "b", "a", "b"):
        assert ask(lambda v=variant: checked.append(v), variant)

    assert not ask(refuse, "c")
    assert ask(forbidden, "a")
    assert checked == ["a", "b"]
    assert dispatch.counts() == {"op:checked": 5, "op:fallback": 1}


def test_what_a_kernel_cannot_take_is_said_once(
    ask: Callable[..., bool], caplog: pytest.LogCaptureFixture
) -> None:
    """PK-1: nothing is compiled for it, it counts as operations, and each reason is a line."""
    with caplog.at_level(logging.WARNING, "neve.metal"):
        taken = [
            ask(forbidden, unsupported=reason) for reason in ("too odd", "too odd", "too wide")
        ]

    assert taken == [False] * 3
    assert dispatch.counts() == {"op:ops": 3}
    assert caplog.messages == [
        "op runs as MLX operations: too odd",
        "op runs as MLX operations: too wide",
    ]


def test_where_nothing_runs_kernels_nothing_is_said(
    ask: Callable[..., bool], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, or with kernels off, operations are no exception."""
    monkeypatch.setattr(launch, "backend", lambda: None)
    with caplog.at_level(logging.WARNING, "neve.metal"):
        assert not ask(forbidden)
        assert not ask(forbidden, unsupported="too odd")

    assert dispatch.counts() == {"op:ops": 2}
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("text", "gist"),
    [
        ("one line", "ValueError: one line"),
        ("first\nsecond", "ValueError: first"),
        ("first\n a.cu(1): error: this\n a.cu(2): error: that", " a.cu(1): error: this"),
        ("", "ValueError: "),
        ("x" * 999, "ValueError: " + "x" * 288),
    ],
)
def test_an_errors_gist_is_one_short_line(text: str, gist: str) -> None:
    """Compilers write pages, of which the first line that names an error says the most."""
    assert dispatch._gist(ValueError(text)) == gist
