"""Which files make up a checkpoint."""

from __future__ import annotations

import json

import pytest

from neve.checkpoint.shard_index import find_shards, read_index
from neve.errors import CheckpointError


@pytest.fixture
def directory(tmp_path):
    def make(*files, weight_map=None):
        for name in files:
            (tmp_path / name).write_bytes(b"")
        if weight_map is not None:
            index = tmp_path / "model.safetensors.index.json"
            index.write_text(json.dumps({"weight_map": weight_map}))
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["model.safetensors"], "model.safetensors"),
        (["model.safetensors", "consolidated.safetensors"], "model.safetensors"),
        (["weights.safetensors"], "weights.safetensors"),
    ],
)
def test_a_single_file(directory, files, chosen):
    """Without an index one weight file is the checkpoint, whatever lies beside it."""
    path = directory(*files)

    assert find_shards(path) == {path / chosen: None}


def test_shards(directory):
    """With an index each shard has the tensors that are listed for it."""
    path = directory(
        "model-1.safetensors",
        "model-2.safetensors",
        weight_map={
            "a": "model-1.safetensors",
            "b": "model-2.safetensors",
            "c": "model-1.safetensors",
        },
    )

    assert find_shards(path) == {
        path / "model-1.safetensors": {"a", "c"},
        path / "model-2.safetensors": {"b"},
    }


@pytest.mark.parametrize(
    ("files", "weight_map", "says"),
    [
        ([], None, r"no model\.safetensors and no model\.safetensors\.index\.json"),
        (["model-1.safetensors", "model-2.safetensors"], None, "several weight files"),
        ([], {"a": "model-1.safetensors"}, "missing: model-1.safetensors"),
        (
            ["model-1.safetensors", "model-9.safetensors"],
            {"a": "model-1.safetensors"},
            "does not list model-9.safetensors",
        ),
        ([], {"a": "../model.safetensors"}, "tensor 'a': .* is no plain file name"),
        ([], {"a": "/model.safetensors"}, "no plain file name"),
        ([], {"a": ".."}, "missing"),
        ([], {"a": ""}, "no plain file name|missing"),
        ([], {"a": 1}, "tensor 'a': 1 is no plain file name"),
        ([], {}, "weight_map must be an object"),
        ([], [], "weight_map must be an object"),
    ],
)
def test_what_does_not_belong_together(directory, files, weight_map, says):
    """Missing, stray and ambiguous files are refused by name, as is a malformed index."""
    path = directory(*files, weight_map=weight_map)

    with pytest.raises(CheckpointError, match=says):
        find_shards(path)


def test_a_malformed_index(tmp_path):
    """An index that lists a tensor twice is refused."""
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}')

    with pytest.raises(CheckpointError, match="key 'a' is repeated"):
        read_index(tmp_path)
