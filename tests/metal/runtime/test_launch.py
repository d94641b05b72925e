from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

from neve.metal.runtime import device, launch
from neve.metal.runtime.launch import Kernel, Launch, MlxBackend

pytestmark = pytest.mark.mlx

KERNEL = Kernel("gated_activation", ("joined", "ip"), ("out",))
LONGER = Kernel("longer", ("q", "sinks", "ip"), ("out", "stats", "next"))
LAUNCH = Launch({"T": mx.float32}, (32, 1, 1), (32, 1, 1), [((1, 4), mx.float32)])


class Toy:
    """A back end that returns zeros."""

    name = "toy"
    self_checks = False

    def launch(
        self, kernel: Kernel, inputs: Sequence[mx.array], launch: Launch
    ) -> list[mx.array]:
        return [mx.zeros(shape, dtype) for shape, dtype in launch.outputs]


class Maker:
    """Stands for `mx.fast.metal_kernel`, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.called: list[dict[str, Any]] = []

    def __call__(self, **options: Any) -> Any:
        self.made.append(options)
        return lambda **call: self.called.append(call) or []


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> MlxBackend:
    """Let there be a GPU, with a back end."""
    made = MlxBackend("toy", Maker(), "mkx_metal.h")
    monkeypatch.setattr(device, "is_gpu", lambda: True)
    monkeypatch.setattr(launch, "_mlx_backend", lambda: made)
    monkeypatch.delenv("NEVE_KERNELS", raising=False)
    return made


def test_a_negative_constant_is_refused() -> None:
    """PK-1: on CUDA it would be part of a name, where a minus cannot stand."""
    with pytest.raises(ValueError, match="template constant N is -1, below zero"):
        Launch({"T": mx.float32, "N": -1}, (32, 1, 1), (32, 1, 1), [])

    Launch({"T": mx.float32, "N": 0, "FLAG": False}, (32, 1, 1), (32, 1, 1), [])


def test_a_back_end_is_used_for_a_while() -> None:
    """The one before comes back, whatever happens meanwhile, one inside the other."""
    outer, inner, before = Toy(), Toy(), launch.backend()

    def fail() -> None:
        with launch.using(inner):
            assert launch.backend() is inner
            raise KeyError

    with launch.using(outer):
        with pytest.raises(KeyError):
            fail()
        assert launch.backend() is outer
        assert not launch.builds_graphs()

    assert launch.backend() is before


@pytest.mark.parametrize(("value", "runs"), [("off", False), ("on", True), ("", True)])
def test_kernels_can_be_switched_off(
    value: str, runs: bool, gpu: MlxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PK-1: `NEVE_KERNELS=off` leaves a GPU to MLX operations."""
    assert launch.backend() is gpu
    monkeypatch.setenv("NEVE_KERNELS", value)

    assert (launch.backend() is gpu) == runs
    assert launch.builds_graphs() == runs


def test_without_a_gpu_nothing_is_launched(
    gpu: MlxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PK-1: on a CPU references run, and a launch is a mistake."""
    monkeypatch.setattr(device, "is_gpu", lambda: False)

    assert launch.backend() is None
    with pytest.raises(RuntimeError, match="kernel gated_activation: the default device runs"):
        KERNEL(mx.zeros((1, 8)), launch.ints(1, 4), launch=LAUNCH)


def test_mlx_is_given_a_kernel_once_for_each_kind_of_inputs(gpu: MlxBackend) -> None:
    """PK-1: MLX tells compiled kernels apart by their names, so a name says the dtypes."""
    maker: Any = gpu._make
    numbers = launch.ints(1, 4)
    for dtype in (mx.float32, mx.float16, mx.float32):
        KERNEL(mx.zeros((1, 8), dtype), numbers, launch=LAUNCH)

    assert [made["name"] for made in maker.made] == [
        "neve_gated_activation_float32_int32",
        "neve_gated_activation_float16_int32",
    ]
    assert {made["source"] for made in maker.made} == {KERNEL.body}
    assert maker.made[0]["header"] == launch.source_text("mkx_metal.h")
    assert len(maker.called) == 3
    call = maker.called[0]
    assert (call["grid"], call["template"]) == ((32, 1, 1), [("T", mx.float32)])
    assert (call["output_shapes"], call["output_dtypes"]) == ([(1, 4)], [mx.float32])


@pytest.mark.parametrize(
    ("names", "inputs", "outputs", "first_line"),
    [
        ((), ("q", "sinks", "ip"), ("out", "stats", "next"), ""),
        (("sinks",), ("q", "ip"), ("out", "stats", "next"), "auto sinks = q;"),
        (("stats",), ("q", "sinks", "ip"), ("out", "next"), "auto stats = next;"),
        (
            ("stats", "ip", "sinks", "out"),
            ("q",),
            ("next",),
            "auto sinks = q; auto ip = q; auto out = next; auto stats = next;",
        ),
    ],
    ids=["none", "an-input", "an-output", "several"],
)
def test_what_a_launch_leaves_out_is_another_name_for_what_is_there(
    names: Sequence[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
    first_line: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PK-1: of the first input or the last output, in a body with as many lines."""
    text = "// a body\n  next[0] = 1;\n"
    monkeypatch.setattr(launch, "source_text", lambda name: text)
    kernel = LONGER.without(*names)

    assert (kernel.inputs, kernel.outputs) == (inputs, outputs)
    assert kernel.body.splitlines()[0].split() == [*first_line.split(), "//", "a", "body"]
    assert kernel.body.splitlines()[1:] == text.splitlines()[1:]


def test_kernels_that_leave_out_different_things_have_different_names(
    gpu: MlxBackend,
) -> None:
    """PK-1: their bodies are not the same, and MLX tells them apart by their names."""
    maker: Any = gpu._make
    kernel = Kernel("gated_activation", ("joined", "ip", "bias"), ("token", "out"))
    some, numbers = mx.zeros((1, 8)), launch.ints(1, 4)
    kernel(some, numbers, numbers, launch=LAUNCH)
    kernel.without("bias")(some, numbers, launch=LAUNCH)
    kernel.without("bias", "token")(some, numbers, launch=LAUNCH)

    assert [made["name"] for made in maker.made] == [
        "neve_gated_activation_float32_int32_int32",
        "neve_gated_activation_no_bias_float32_int32",
        "neve_gated_activation_no_bias_no_token_float32_int32",
    ]
    assert maker.made[2]["input_names"] == ["joined", "ip"]
    assert maker.made[2]["output_names"] == ["out"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("x",), "'x'"),
        (("sinks", "x"), "'x'"),
        (("q",), "'q'"),
        (("next", "stats"), "'next'"),
    ],
)
def test_what_cannot_be_left_out_is_refused(names: Sequence[str], message: str) -> None:
    """PK-1: a name of nothing, and what others' names stand for."""
    with pytest.raises(ValueError, match=message):
        LONGER.without(*names)


def test_numbers_are_kept() -> None:
    """A launch makes no array anew for numbers that it had before."""
    assert launch.ints(3, 4) is launch.ints(3, 4)
    assert launch.floats(0.5) is launch.floats(0.5)
    assert launch.ints(3, 4).dtype == mx.int32
    assert launch.floats(0.5).dtype == mx.float32
