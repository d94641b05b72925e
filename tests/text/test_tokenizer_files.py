from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from neve.errors import CheckpointError
from neve.text.tokenizer_files import read_tokenizer_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_missing_tokenizer(tmp_path: Path):
    """A folder without tokenizer.json is refused."""
    with pytest.raises(CheckpointError, match="missing"):
        read_tokenizer_files(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b"\xff\xfe", b'{"model": 3}'])
def test_corrupt_tokenizer(tmp_path: Path, content: bytes):
    """A corrupt tokenizer.json is a typed error that names the file."""
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        read_tokenizer_files(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("content", ["{", "[]", '"a"'])
def test_corrupt_side_files(write_checkpoint: Callable[..., Path], name: str, content: str):
    """The files beside it must hold JSON objects."""
    path = write_checkpoint()
    (path / name).write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=name):
        read_tokenizer_files(path)


def test_side_files_may_be_missing(write_checkpoint: Callable[..., Path]):
    """tokenizer.json alone is enough."""
    files = read_tokenizer_files(write_checkpoint())

    assert files.named_tokens == {}
    assert files.templates == {}


def test_named_tokens(write_checkpoint: Callable[..., Path]):
    """Named tokens may be plain or objects; tokenizer_config.json wins."""
    files = read_tokenizer_files(
        write_checkpoint(
            special_tokens_map={"eos_token": "x", "unk_token": "u", "pad_token": None},
            tokenizer_config={"eos_token": {"content": "y"}, "add_bos_token": True},
        )
    )

    assert files.named_tokens == {"eos_token": "y", "unk_token": "u"}


def test_template_file_wins(write_checkpoint: Callable[..., Path]):
    """chat_template.jinja goes before tokenizer_config.json."""
    path = write_checkpoint(tokenizer_config={"chat_template": "a"})

    assert read_tokenizer_files(path).templates == {"default": "a"}
    (path / "chat_template.jinja").write_text("b", encoding="utf-8")

    assert read_tokenizer_files(path).templates == {"default": "b"}


@pytest.mark.parametrize("template", [3, ["a"], [{"name": "default"}], {"default": "a"}])
def test_malformed_template(write_checkpoint: Callable[..., Path], template: Any):
    """A chat template is a string or a list of named ones."""
    path = write_checkpoint(tokenizer_config={"chat_template": template})
    with pytest.raises(CheckpointError, match="chat_template"):
        read_tokenizer_files(path)


def test_truncation_and_padding_are_off(write_checkpoint: Callable[..., Path]):
    """Truncation and padding that were left on in tokenizer.json touch no prompt."""
    path = write_checkpoint()
    value = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    value["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    value["padding"] = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    (path / "tokenizer.json").write_text(json.dumps(value), encoding="utf-8")
    backend = read_tokenizer_files(path).backend

    assert backend.encode("The The The").ids == backend.encode("The").ids + 2 * (
        backend.encode(" The").ids
    )
