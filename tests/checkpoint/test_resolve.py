"""Sources: local paths, hub repositories, and what is said when they cannot be had."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neve.checkpoint.resolve import RepoId, parse_repo_id, resolve_checkpoint
from neve.errors import CheckpointError

REPO = "snow/flake"
INDEX = {
    "weight_map": {
        "a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors",
    }
}
FILES = {
    "config.json": b'{"model_type": "tiny"}',
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
    "model-00001-of-00002.safetensors": b"first",
    "model-00002-of-00002.safetensors": b"second" * 1000,
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"hello",
    "README.md": b"not needed",
    "pytorch_model.bin": b"not needed",
    "original/model.safetensors": b"not needed",
    "consolidated.safetensors": b"not needed",
}
NEEDED = sorted(name for name in FILES if FILES[name] != b"not needed")


def resolve(source, **options):
    return resolve_checkpoint(source, progress=False, **options)


def test_a_directory_is_itself(qwen3_dir):
    """A checkpoint directory resolves to itself, as a string and as a path."""
    found = [resolve(qwen3_dir), resolve(str(qwen3_dir))]

    assert found == [qwen3_dir, qwen3_dir]


def test_a_gguf_file_is_itself(tmp_path):
    """A local .gguf file resolves to itself."""
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")

    assert resolve(file) == file


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([], "there is no config.json"),
        (["config.json"], r"no weights \(\*\.safetensors\)"),
        (["x.gguf"], "to open a GGUF file, name it: .*/x.gguf"),
    ],
)
def test_a_directory_without_its_parts(tmp_path, files, says):
    """A directory that is no checkpoint is refused with what it lacks."""
    for name in files:
        (tmp_path / name).write_text("{}")

    with pytest.raises(CheckpointError, match=says):
        resolve(tmp_path)


def test_a_directory_with_a_missing_shard(tmp_path):
    """A shard that the index lists and the directory lacks is named."""
    for name in ("config.json", "model.safetensors.index.json"):
        (tmp_path / name).write_bytes(FILES[name])

    with pytest.raises(CheckpointError, match=r"missing: model-00001.*, model-00002"):
        resolve(tmp_path)


@pytest.mark.parametrize(
    "source",
    ["/no/such/directory", "./org/name", "~/nowhere-at-all", "name", "a/b/c", "models/x.gguf"],
)
def test_neither_a_path_nor_a_repository(source):
    """What is neither is refused without a request, and both forms are named."""
    with pytest.raises(CheckpointError, match=r"no such file or directory, and no hub repo"):
        resolve(source)


def test_a_path_never_goes_to_the_hub(hub):
    """A `Path` means a path, even where its text could be a repository."""
    hub.repos[REPO] = FILES

    with pytest.raises(CheckpointError, match="no such file or directory"):
        resolve(Path(REPO))
    assert hub.requests == []


def test_other_files_are_no_checkpoints(tmp_path):
    """A file that is no .gguf is refused."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")

    with pytest.raises(CheckpointError, match=r"neither a directory nor a \.gguf file"):
        resolve(file)


def test_a_revision_belongs_to_a_repository(qwen3_dir):
    """A revision of a local directory is refused rather than ignored."""
    with pytest.raises(CheckpointError, match="revision belongs to a hub repository"):
        resolve(qwen3_dir, revision="main")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("org/name", RepoId("org/name", None)),
        ("org/na.me-1_b:q4.gguf", RepoId("org/na.me-1_b", "q4.gguf")),
        ("org/name:sub/q4.gguf", RepoId("org/name", "sub/q4.gguf")),
        ("org/name:../q4.gguf", None),
        ("org/name:q4.bin", None),
        ("org/na--me", None),
        ("org/name.gguf", None),
        ("org/name\n", None),
    ],
)
def test_repository_names(source, expected):
    """`org/name` and `org/name:file.gguf` are repositories, nothing else is."""
    assert parse_repo_id(source) == expected


def test_download(hub, logged):
    """A repository is downloaded, and only what a model is loaded from."""
    hub.repos[REPO] = FILES

    path = resolve(REPO)

    found = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
    assert found == NEEDED
    assert (path / "config.json").read_bytes() == FILES["config.json"]
    assert [entry["event"] for entry in logged] == ["checkpoint.file.resolved"]


def test_a_cached_snapshot_needs_no_network(hub):
    """The second call is answered by the cache, without a request."""
    hub.repos[REPO] = FILES
    first = resolve(REPO)
    hub.stop()
    asked = len(hub.requests)

    second = resolve(REPO)

    assert second == first
    assert len(hub.requests) == asked


def test_an_interrupted_snapshot_is_not_complete(hub):
    """A download that broke off is not taken for a checkpoint, and is completed later."""
    hub.repos[REPO] = FILES
    hub.cut = {"model-00002-of-00002.safetensors"}
    with pytest.raises(CheckpointError, match="download failed"):
        resolve(REPO)

    hub.cut = set()
    path = resolve(REPO)

    shard = path / "model-00002-of-00002.safetensors"
    assert shard.read_bytes() == FILES["model-00002-of-00002.safetensors"]


def test_an_incomplete_snapshot_without_network(hub):
    """With the hub out of reach, an incomplete copy is refused, with advice."""
    hub.repos[REPO] = FILES
    path = resolve(REPO)
    (path / "model-00001-of-00002.safetensors").unlink()
    hub.stop()

    with pytest.raises(CheckpointError, match="cannot be reached and the cache holds no comp"):
        resolve(REPO)


def test_an_incomplete_snapshot_without_a_listing(hub):
    """Without a cached listing, the index says which weight files are missing."""
    hub.repos[REPO] = FILES
    path = resolve(REPO)
    for listing in path.parents[1].glob("trees/*.json"):
        listing.unlink()
    (path / "model-00001-of-00002.safetensors").unlink()

    again = resolve(REPO)

    assert (again / "model-00001-of-00002.safetensors").read_bytes() == b"first"


def test_one_gguf_file_of_a_repository(hub):
    """`org/name:file.gguf` downloads that file alone, and then needs no network."""
    hub.repos[REPO] = {"q4.gguf": b"GGUF4", "q8.gguf": b"GGUF8"}

    path = resolve(f"{REPO}:q4.gguf")
    hub.stop()

    assert path.read_bytes() == b"GGUF4"
    assert resolve(f"{REPO}:q4.gguf") == path
    assert not (path.parent / "q8.gguf").exists()


def test_a_repository_of_gguf_files(hub):
    """A repository without config.json says how to name one of its GGUF files."""
    hub.repos[REPO] = {"q4.gguf": b"GGUF4"}

    with pytest.raises(CheckpointError, match=r"snow/flake:FILE\.gguf"):
        resolve(REPO)


def test_a_file_that_the_repository_lacks(hub):
    """A GGUF file that does not exist is named together with its repository."""
    hub.repos[REPO] = FILES

    with pytest.raises(CheckpointError, match=r"snow/flake:q4\.gguf: there is no such file"):
        resolve(f"{REPO}:q4.gguf")


def test_a_revision(hub):
    """A commit resolves to its snapshot; an unknown revision is named."""
    hub.repos[REPO] = FILES
    commit = resolve(REPO).name

    assert resolve(REPO, revision=commit).name == commit
    with pytest.raises(CheckpointError, match="no revision 'nowhere'"):
        resolve(REPO, revision="nowhere")


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (404, "RepoNotFound", "no such repository, or it is private"),
        (401, "", "the hub refused: .*401(.|\n)*hf auth login"),
        (500, "", "the hub cannot be reached"),
        (401, "GatedRepo", "accept its conditions on the hub"),
        (403, "GatedRepo", "accept its conditions on the hub"),
    ],
)
def test_refusals(hub, status, code, says):
    """What the hub refuses is explained, with what to do about it."""
    hub.refused[REPO] = (status, code)

    with pytest.raises(CheckpointError, match=says):
        resolve(REPO)
    with pytest.raises(CheckpointError, match=says):
        resolve(f"{REPO}:q4.gguf")


def test_no_network_and_no_copy(hub):
    """With the hub out of reach and nothing cached, the message says what to do."""
    hub.stop()

    with pytest.raises(CheckpointError, match="connect to the network, or give the path"):
        resolve(REPO)


@pytest.mark.parametrize("progress", [True, False])
def test_progress_and_environment(hub, tmp_path, progress):
    """HF_ENDPOINT and HF_HUB_CACHE are honoured; `progress` turns the bars on and off."""
    hub.repos[REPO] = FILES
    code = (
        "from neve.checkpoint.resolve import resolve_checkpoint as r;"
        f"print(r({REPO!r}, progress={progress}))"
    )
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(tmp_path / "other"),
        "TQDM_POSITION": "-1",
    }

    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    path = Path(done.stdout.splitlines()[-1])
    assert path.is_relative_to(tmp_path / "other")
    assert ("Fetching" in done.stderr) == progress
