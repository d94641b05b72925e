"""The complete identity of weights."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neve.checkpoint import identity as identity_module
from neve.checkpoint.digest_memory import DigestMemory
from neve.checkpoint.identity import CHUNK_BYTES, WeightIdentity, weight_files
from neve.errors import CheckpointError, WeightsChangedError

INDEX = "model.safetensors.index.json"
SHARDS = ("model-1.safetensors", "model-2.safetensors")


@pytest.fixture
def memory(tmp_path: Path) -> DigestMemory:
    return DigestMemory(tmp_path / "digests.json")


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Write a checkpoint of two shards and an index."""

    def make(
        name: str = "checkpoint", contents: tuple[bytes, bytes] = (b"one", b"two")
    ) -> Path:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        for shard, content in zip(SHARDS, contents, strict=True):
            (directory / shard).write_bytes(content)
        weight_map = {f"tensor.{shard}": shard for shard in SHARDS}
        (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))
        return directory

    return make


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file be older than the grain of any file system."""
    now_ns = identity_module.time.time_ns
    monkeypatch.setattr(identity_module.time, "time_ns", lambda: now_ns() + 10**10)


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise AssertionError("a file was read")

    monkeypatch.setattr(identity_module, "_read_in_full", fail)


def test_the_files_of_sharded_weights(make: Callable[..., Path]) -> None:
    """CT-4: shards and their index count, what merely lies beside them does not."""
    directory = make()
    (directory / "config.json").write_text("{}")

    assert weight_files(directory) == tuple(
        directory / name for name in sorted([INDEX, *SHARDS])
    )


def test_the_file_of_unsharded_weights(qwen3_dir: Path, tmp_path: Path) -> None:
    """CT-4: one safetensors file, or the one GGUF file that was named."""
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")

    assert weight_files(qwen3_dir) == (qwen3_dir / "model.safetensors",)
    assert weight_files(gguf) == (gguf,)


def test_the_digest_is_of_content_and_names(
    make: Callable[..., Path], memory: DigestMemory
) -> None:
    """CT-4: copies have one digest, wherever they lie."""
    directory = make()
    digest = WeightIdentity.stat(directory).digest(memory)
    copy = WeightIdentity.stat(make("copy")).digest(memory)

    assert digest is not None
    assert len(digest) == 32
    assert copy == digest


def test_a_hub_snapshot_of_links_is_its_blobs(
    make: Callable[..., Path], memory: DigestMemory, tmp_path: Path
) -> None:
    """CT-4: links count under their own names, with what they lead to."""
    directory, snapshot = make(), tmp_path / "snapshot"
    snapshot.mkdir()
    for number, file in enumerate(directory.iterdir()):
        blob = shutil.copy(file, tmp_path / f"blob-{number}")
        (snapshot / file.name).symlink_to(blob)

    linked = WeightIdentity.stat(snapshot)

    assert linked.digest(memory) == WeightIdentity.stat(directory).digest(memory)

    (tmp_path / "blob-0").write_bytes(b"other")

    assert not linked.unchanged()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_byte_counts(
    make: Callable[..., Path], memory: DigestMemory, data: st.DataObject
) -> None:
    """CT-4: one flipped bit anywhere is another model."""
    contents = (bytes(CHUNK_BYTES + 5), bytes(3))
    digest = WeightIdentity.stat(make(contents=contents)).digest(memory)
    which = data.draw(st.sampled_from([0, 1]))
    changed = [bytearray(content) for content in contents]
    changed[which][data.draw(st.integers(0, len(contents[which]) - 1))] ^= 1

    assert WeightIdentity.stat(make(contents=changed)).digest(memory) != digest


@pytest.mark.parametrize("contents", [(b"onet", b"wo"), (b"two", b"one"), (b"", b"onetwo")])
def test_bytes_belong_to_their_file(
    make: Callable[..., Path], memory: DigestMemory, contents: tuple[bytes, bytes]
) -> None:
    """CT-4: the same bytes divided otherwise are another model."""
    digest = WeightIdentity.stat(make()).digest(memory)

    assert WeightIdentity.stat(make("other", contents)).digest(memory) != digest


def test_names_count(memory: DigestMemory, tmp_path: Path) -> None:
    """CT-4: a renamed file is another model."""
    files = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for file in files:
        file.write_bytes(b"GGUF")

    first, second = (WeightIdentity.stat(file).digest(memory) for file in files)

    assert first != second


def test_progress_reaches_the_whole(make: Callable[..., Path], memory: DigestMemory) -> None:
    """CT-4: progress rises to the number of bytes, chunk by chunk."""
    weights = WeightIdentity.stat(make(contents=(bytes(2 * CHUNK_BYTES + 1), b"two")))
    told: list[tuple[int, int]] = []

    weights.digest(memory, lambda done, total: told.append((done, total)))

    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {total for _, total in told} == {weights.num_bytes}
    assert told[-1][0] == weights.num_bytes
    assert len(told) == 5


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4, 5])
def test_a_cancelled_digest_is_none(
    make: Callable[..., Path], memory: DigestMemory, after: int
) -> None:
    """CT-4: closing a model does not wait for its weights to be read."""
    weights = WeightIdentity.stat(make(contents=(bytes(2 * CHUNK_BYTES), b"two")))
    asked = iter([False] * after)

    assert weights.digest(memory, cancelled=lambda: next(asked, True)) is None


@pytest.mark.usefixtures("later")
def test_a_known_file_is_not_read_again(
    make: Callable[..., Path], memory: DigestMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CT-4: a second load looks at the files and reads none; progress reaches the whole."""
    directory = make()
    digest = WeightIdentity.stat(directory).digest(memory)
    forbid_reading(monkeypatch)
    weights, told = WeightIdentity.stat(directory), list[int]()

    assert weights.digest(memory, lambda done, _: told.append(done)) == digest
    assert told[-1] == weights.num_bytes


def test_a_file_written_just_now_is_read_again(
    make: Callable[..., Path], memory: DigestMemory
) -> None:
    """CT-4: what could be written to within the same tick is not remembered."""
    WeightIdentity.stat(make()).digest(memory)

    assert memory.recall() == {}


@pytest.mark.usefixtures("later")
def test_a_written_file_is_read_again(make: Callable[..., Path], memory: DigestMemory) -> None:
    """CT-4: the memory knows a file by what stat says, so that a write is seen."""
    directory = make()
    before = WeightIdentity.stat(directory).digest(memory)
    (directory / SHARDS[0]).write_bytes(b"One")
    os.utime(directory / SHARDS[0], (1, 1))  # the clock may not have moved on by itself

    after = WeightIdentity.stat(directory).digest(memory)

    assert after != before
    assert after == WeightIdentity.stat(directory).digest(DigestMemory(directory / "none"))


CHANGES: dict[str, Callable[[Path], object]] = {
    "longer": lambda file: file.write_bytes(b"longer"),
    "empty": lambda file: file.write_bytes(b""),
    "touched": lambda file: os.utime(file, (1, 1)),
    "replaced": lambda file: Path(shutil.copy(file, f"{file}.new")).replace(file),
}


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("known", [False, True])
def test_a_file_that_was_changed_after_opening_is_refused(
    make: Callable[..., Path], memory: DigestMemory, change: str, known: bool
) -> None:
    """CT-4: the digest is of the files that were opened, read or remembered, or is none."""
    directory = make()
    weights = WeightIdentity.stat(directory)
    if known:
        weights.digest(memory)

    assert weights.unchanged()

    CHANGES[change](directory / SHARDS[1])

    assert not weights.unchanged()

    told = list[int]()
    with pytest.raises(WeightsChangedError, match=f"{SHARDS[1]}: the file changed") as caught:
        weights.digest(memory, lambda done, _: told.append(done))

    assert caught.value.path == directory / SHARDS[1]
    assert told == [len(b"one")]


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_read_is_refused(
    make: Callable[..., Path], memory: DigestMemory, change: str
) -> None:
    """CT-4: a digest of a file under a writer is never given, nor remembered."""
    directory = make(contents=(bytes(3 * CHUNK_BYTES), b"two"))
    weights, file = WeightIdentity.stat(directory), directory / SHARDS[0]

    def interfere(done: int, _: int) -> None:
        if done == CHUNK_BYTES:
            CHANGES[change](file)

    with pytest.raises(WeightsChangedError, match=SHARDS[0]):
        weights.digest(memory, interfere)
    assert weights.files[file] not in memory.recall()


@pytest.mark.usefixtures("later")
def test_a_link_that_is_led_elsewhere_is_refused(
    make: Callable[..., Path], memory: DigestMemory
) -> None:
    """CT-4: a hub snapshot that is updated while it is read is not what was opened."""
    directory = make()
    file, blobs = directory / SHARDS[0], (directory / "old", directory / "new")
    for blob in blobs:
        blob.write_bytes(b"one")
    file.unlink()
    file.symlink_to(blobs[0])
    weights = WeightIdentity.stat(directory)

    def lead_elsewhere(*_: int) -> None:
        file.unlink()
        file.symlink_to(blobs[1])

    with pytest.raises(WeightsChangedError, match=SHARDS[0]):
        weights.digest(memory, lead_elsewhere)


def test_a_file_that_never_ends_is_refused(
    make: Callable[..., Path], memory: DigestMemory
) -> None:
    """CT-4: a file that grows as fast as it is read does not hold the digest up."""
    directory = make()
    weights = WeightIdentity.stat(directory)

    def grow(*_: int) -> None:
        with (directory / SHARDS[0]).open("ab") as file:
            file.write(b"more")

    with pytest.raises(WeightsChangedError):
        weights.digest(memory, grow)


def test_a_file_that_cannot_be_read(
    make: Callable[..., Path], memory: DigestMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CT-4: an unreadable or vanished shard is an error that names it, never a digest."""
    directory = make()
    weights = WeightIdentity.stat(directory)

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(identity_module, "_read_in_full", fail)
        with pytest.raises(CheckpointError, match=r"cannot be read in full: .*output error"):
            weights.digest(memory)
    (directory / SHARDS[0]).unlink()
    with pytest.raises(CheckpointError, match=SHARDS[0]):
        weights.digest(memory)
    assert not weights.unchanged()
    with pytest.raises(CheckpointError, match=SHARDS[0]):
        WeightIdentity.stat(directory)


def test_no_bytes_have_no_digest(tmp_path: Path, memory: DigestMemory) -> None:
    """CT-4: zero files or zero bytes are refused."""
    empty = tmp_path / "empty.gguf"
    empty.touch()
    with pytest.raises(CheckpointError, match="empty"):
        WeightIdentity.stat(empty).digest(memory)
    with pytest.raises(CheckpointError, match="empty"):
        WeightIdentity({}).digest(memory)
    with pytest.raises(CheckpointError, match=r"none\.gguf"):
        WeightIdentity.stat(tmp_path / "none.gguf")
