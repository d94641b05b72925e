"""Tiny checkpoints and recorded goldens: what an author without a reference checkpoint has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import neve
from neve.checkpoint.checkpoint import open_checkpoint
from neve.errors import FamilyNotInstalledError
from neve.layers.moe import Routing
from neve.layers.sparse_mlp import SparseMLP
from neve.testing.golden import read_goldens
from neve.testing.golden_recorder import NUM_POSITIONS, record_goldens
from neve.testing.parity import differs_at
from neve.testing.tiny import BYTES, RandomWeights, byte_tokenizer, write_checkpoint

pytestmark = pytest.mark.mlx

CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": BYTES,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a dense family."""
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3", CONFIG)


def test_a_tiny_checkpoint_answers(checkpoint: Path) -> None:
    """FW-6: it loads like any other, under the names of a checkpoint."""
    with neve.load(checkpoint, paged_cache_memory_mb=1) as model:
        answer = model.generate("Once upon a time", max_tokens=4)

    assert answer.usage.prompt_tokens == 16
    assert (
        "model.layers.1.self_attn.q_proj.weight"
        in open_checkpoint(checkpoint, dtype=None).weights
    )


def test_the_same_seed_gives_the_same_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    """FW-6: tests repeat; another seed gives other weights."""
    name = "model.layers.0.mlp.up_proj.weight"
    (tmp_path / "other").mkdir()
    same = write_checkpoint(tmp_path, "qwen3", CONFIG)
    other = write_checkpoint(tmp_path / "other", "qwen3", CONFIG, seed=1)
    found = [
        open_checkpoint(path, dtype=None).weights[name] for path in (checkpoint, same, other)
    ]

    assert mx.array_equal(found[0], found[1])
    assert not mx.array_equal(found[0], found[2])


def test_experts_are_stored_one_by_one() -> None:
    """FW-6: a family that stacks experts finds them as in a makers' checkpoint."""
    layer, weights = SparseMLP(16, 8, 3, Routing(2)), RandomWeights(0.1)
    weights.stacked("mlp.experts").stacked("experts").load_into(layer)
    names = {name for name in weights.tensors if "up_proj" in name}

    assert names == {f"experts.{i}.up_proj.weight" for i in range(3)}
    assert weights.tensors["experts.2.up_proj.weight"].shape == (8, 16)
    assert mx.array_equal(
        weights.tensors["experts.2.up_proj.weight"], layer.experts.up_proj.weight[2]
    )


def test_an_unknown_family_is_told(tmp_path: Path) -> None:
    """FW-6: before anything is written."""
    with pytest.raises(FamilyNotInstalledError):
        write_checkpoint(tmp_path, "larch", CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_the_tokenizer_has_a_token_a_byte() -> None:
    """FW-6: any text comes back."""
    tokenizer = byte_tokenizer()
    text = "Grüße, 東京!"
    ids = tokenizer.encode(text).ids

    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.get_vocab_size() == BYTES


def test_recorded_goldens_are_those_of_the_reference(checkpoint: Path) -> None:
    """FW-6: greedy tokens, their margins, and logits of the last positions."""
    prompts = {"short": [1, 2, 3], "long": [(7 * i) % BYTES for i in range(40)]}
    with neve.load(checkpoint, dtype="float32", use_block_paged_cache=False) as model:
        record_goldens(checkpoint, prompts, model.logits, max_new=5)
        goldens = read_goldens(checkpoint)
        assert goldens is not None
        for prompt in goldens.prompts:
            answer = model.generate(prompt.ids, max_tokens=5)
            assert differs_at(answer.tokens, prompt.f32) is None
            stored, logits = goldens.logits[prompt.id], np.array(model.logits(prompt.ids))
            assert len(stored.positions) == min(NUM_POSITIONS, len(prompt.ids))
            np.testing.assert_array_equal(stored.logits, logits[stored.positions])

    assert [list(p.ids) for p in goldens.prompts] == list(prompts.values())


def test_an_answer_ends_where_the_model_does(tmp_path: Path) -> None:
    """FW-6: the end-of-sequence token is the last one that is recorded."""

    def counting(ids: Any) -> np.ndarray:
        return np.eye(8, dtype=np.float32)[[(i + 1) % 8 for i in ids]]

    record_goldens(tmp_path, {"count": [1, 2]}, counting, max_new=9, end_ids={5})
    goldens = read_goldens(tmp_path)

    assert goldens is not None
    assert goldens.prompt("count").f32.tokens == (3, 4, 5)
    assert goldens.prompt("count").f32.margins == (1.0, 1.0, 1.0)


def test_a_reference_of_the_last_row_alone_is_refused(tmp_path: Path) -> None:
    """FW-6: logits of every token are wanted."""
    with pytest.raises(ValueError, match=r"\[2, V\]"):
        record_goldens(tmp_path, {"a": [1, 2]}, lambda ids: np.zeros((1, 8)))
