"""A tiny Llama checkpoint with random weights, created here without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neve.testing.tiny import write_checkpoint

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoint."""
    return write_checkpoint(tmp_path_factory.mktemp("tiny-llama"), "llama", CONFIG)
