"""Every parameter of every public function, given odd values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
import pytest

import neve
from neve.errors import NeveError, RequestError, SettingsError
from neve.sampling.params import SamplingParams
from neve.settings import FIELD_ROOMS, resolve

pytestmark = pytest.mark.mlx

CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "qwen3"

# made by functions, since an iterator is good for one call
ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "5": lambda: 5,
    "-1": lambda: -1,
    "2**70": lambda: 2**70,
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "complex": lambda: 1j,
    "empty text": lambda: "",
    "text": lambda: "odd",
    "NUL": lambda: "a\0b",
    "surrogate": lambda: "a\ud800",
    "bytes": lambda: b"abc",
    "bytearray": lambda: bytearray(b"abc"),
    "empty list": list,
    "list of text": lambda: ["x"],
    "list of None": lambda: [None],
    "deep list": lambda: _deep(),
    "tuple": lambda: (1, 2),
    "empty dict": dict,
    "dict": lambda: {"a": 1},
    "odd keys": lambda: {None: object()},
    "set": lambda: {1, 2},
    "iterator": lambda: iter([1, 2]),
    "generator": lambda: (i for i in range(2)),
    "numpy integers": lambda: np.array([1, 2]),
    "numpy floats": lambda: np.array([1.5]),
    "numpy scalar": lambda: np.float64(0.5),
    "numpy matrix": lambda: np.array([[1, 2]]),
    "mlx integers": lambda: mx.array([1, 2]),
    "mlx floats": lambda: mx.array([1.5]),
    "object": object,
    "type": lambda: int,
    "function": lambda: len,
    "path": lambda: Path("odd"),
    "error": lambda: ValueError("odd"),
}


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    return deep


@attrs.frozen
class World:
    """What the calls need."""

    model: Any
    store: Any
    handle: Any
    nowhere: Any


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("odd")
    with (
        neve.load(CHECKPOINT, paged_cache_memory_mb=32) as model,
        neve.cold_store(folder / "cold", create=True) as store,
    ):
        handle = model.submit("Once", max_tokens=1)
        handle.result(60)
        yield World(model, store, handle, str(folder / "nowhere"))


MESSAGES: Any = [{"role": "user", "content": "Hi"}]


def _submit(world: World, **arguments: Any) -> None:
    prompt = MESSAGES if arguments.keys() & {"tools", "template_kwargs"} else "Once"
    world.model.submit(**{"prompt": prompt, "max_tokens": 1, **arguments}).cancel()


def _stream(world: World, **arguments: Any) -> None:
    world.model.stream(**{"prompt": "Once", **arguments}).close()


def _load(world: World, **arguments: Any) -> None:
    neve.load(**{"source": world.nowhere, **arguments}).close()


def _chat(world: World, **arguments: Any) -> None:
    world.model.chat(**arguments)


def _chat_stream(world: World, **arguments: Any) -> None:
    world.model.chat().stream(**arguments).close()


def _remember(world: World, **arguments: Any) -> None:
    done = world.handle.result()
    world.model.chat().remember(**{"messages": list(MESSAGES), "completion": done, **arguments})


CALLS: dict[str, Callable[..., Any]] = {
    "Chat.remember": _remember,
    "Chat.send": lambda world, **a: world.model.chat(max_tokens=1).send(**a),
    "Chat.stream": _chat_stream,
    "ColdStoreHandle.clear": lambda world, **a: world.store.clear(**a),
    "ColdStoreHandle.explain": lambda world, **a: world.store.explain(**a),
    "ColdStoreHandle.export": lambda world, **a: world.store.export(
        **{"file": world.nowhere, "objects": [], **a}
    ),
    "ColdStoreHandle.import_bundle": lambda world, **a: world.store.import_bundle(**a),
    "ColdStoreHandle.objects": lambda world, **a: world.store.objects(**a),
    "ColdStoreHandle.prune": lambda world, **a: world.store.prune(**{"target_bytes": 0, **a}),
    "ColdStoreHandle.stored_prefix": lambda world, **a: world.store.stored_prefix(**a),
    "ColdStoreHandle.verify": lambda world, **a: world.store.verify(**a),
    "Handle.result": lambda world, **a: world.handle.result(**a),
    "Model.chat": _chat,
    "Model.encode": lambda world, **a: world.model.encode(**{"prompt": MESSAGES, **a}),
    "Model.flush": lambda world, **a: world.model.flush(**a),
    "Model.generate": lambda world, **a: world.model.generate(max_tokens=1, **a),
    "Model.logits": lambda world, **a: world.model.logits(**a),
    "Model.stream": _stream,
    "Model.submit": _submit,
    "Model.wait_identified": lambda world, **a: world.model.wait_identified(**a),
    "certify": lambda world, **a: neve.certify(**{"source": world.nowhere, **a}),
    "cold_store": lambda world, **a: neve.cold_store(**{"path": world.nowhere, **a}).close(),
    "families": lambda _, **a: neve.families(**a),
    "load": _load,
}
"""Public function -> a call of it that is right but for the given arguments."""

FILES = {"ColdStoreHandle.export", "ColdStoreHandle.import_bundle"}
"""Functions that read or write a file of the caller's, and raise `OSError` about it."""


def _public_functions() -> dict[str, list[str]]:
    """Return every public function with parameters, and their names."""
    functions: dict[str, Callable[..., Any]] = {}
    for name in neve.__all__:
        value = getattr(neve, name)
        if inspect.isfunction(value):
            functions[name] = value
        elif inspect.isclass(value) and not attrs.has(value) and name != "Stream":
            methods = inspect.getmembers(value, inspect.isfunction)
            functions |= {f"{name}.{m}": f for m, f in methods if not m.startswith("_")}
    named = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    parameters = {
        name: [p.name for p in inspect.signature(f).parameters.values() if p.kind in named]
        for name, f in functions.items()
    }
    return {n: [p for p in ps if p != "self"] for n, ps in parameters.items() if ps != ["self"]}


FUNCTIONS = _public_functions()
SAMPLING = [field.name for field in attrs.fields(SamplingParams)]
PARAMETERS = [
    *((name, param) for name, params in FUNCTIONS.items() for param in params),
    *((name, param) for name in ("Model.submit", "Model.chat") for param in SAMPLING),
    ("Model.chat", "tools"),
    ("Model.chat", "template_kwargs"),
]


def test_the_table_is_whole():
    """A public function that is added is tested, or this fails."""
    assert set(CALLS) == {name for name in FUNCTIONS if FUNCTIONS[name]}


def _refusal(call: Callable[[], Any]) -> Exception | None:
    """Return the error of neve's, or about a file, that a call ends in; others escape."""
    try:
        call()
    except (NeveError, OSError) as error:
        return error
    return None


def _names(error: Exception | None, name: str, param: str) -> bool:
    """Return whether an error says which parameter is wrong."""
    if isinstance(error, RequestError):
        return error.param in {param, "messages", "prompt"}
    if isinstance(error, SettingsError):
        return param in str(error) or name == "cold_store"
    return not isinstance(error, OSError) or isinstance(error, NeveError) or name in FILES


@pytest.mark.parametrize(("name", "param"), PARAMETERS)
def test_odd_values(
    world: World,
    hostile: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    param: str,
):
    """An odd value works, or is refused by an error of neve's that names the parameter."""
    monkeypatch.chdir(tmp_path)
    for make in (*ODD.values(), lambda: hostile):
        value = make()
        error = _refusal(lambda value=value: CALLS[name](world, **{param: value}))

        assert _names(error, name, param), f"{name}({param}={type(value)}): {error!r}"

    assert world.model.generate("Once", max_tokens=1).usage.completion_tokens == 1


@pytest.mark.parametrize("field", FIELD_ROOMS)
def test_odd_settings(hostile: Any, field: str):
    """An odd setting is taken as it is, or refused by name."""
    for make in (*ODD.values(), lambda: hostile):
        value = make()
        error = _refusal(lambda value=value: resolve(None, {field: value}, environ={}))

        assert error is None or field in str(error)


@pytest.mark.parametrize("name", ["Model.submit", "Model.generate", "Model.encode"])
@pytest.mark.parametrize(
    "odd", ["None", "5", "bytes", "set", "iterator", "dict", "numpy matrix"]
)
def test_wrong_prompts_are_named(world: World, name: str, odd: str):
    """No prompt of a wrong type is taken for another."""
    with pytest.raises(RequestError) as caught:
        CALLS[name](world, prompt=ODD[odd]())

    assert (caught.value.code, caught.value.param) == ("invalid_prompt", "prompt")


@pytest.mark.parametrize("odd", ["numpy integers", "mlx integers", "tuple"])
def test_arrays_of_ids_are_prompts(world: World, odd: str):
    """A one-dimensional array of integers is token ids."""
    assert world.model.encode(ODD[odd]()) == [1, 2]


@pytest.mark.parametrize(
    "field", ["cold_cache_dir", "cold_evidence_dir", "turn_log_dir", "inference_trace_file"]
)
@pytest.mark.parametrize("odd", ["empty text", "NUL", "surrogate"])
def test_folders_that_cannot_be(field: str, odd: str):
    """A folder that no file system could have is refused before anything is opened."""
    with pytest.raises(SettingsError, match=f"{field}: must be a path"):
        resolve(None, {field: ODD[odd]()}, environ={})


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_deep_json_of_a_tokenizer(tmp_path: Path, file: str):
    """Nesting deeper than Python's stack is a fault of the file, not of Python."""
    for source in CHECKPOINT.iterdir():
        (tmp_path / source.name).symlink_to(source)
    (tmp_path / file).unlink(missing_ok=True)
    (tmp_path / file).write_text("[" * 200_000)
    with pytest.raises(neve.NeveError, match=file):
        neve.load(tmp_path)
