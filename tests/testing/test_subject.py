"""A family under test, found by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from neve.errors import CheckpointError, FamilyNotInstalledError
from neve.testing.subject import Subject

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"


def test_subject_knows_family_config_and_goldens():
    """FW-6: two words name all that the suite needs."""
    subject = Subject.of("qwen3", CHECKPOINTS / "qwen3")
    assert subject.goldens is not None

    assert subject.family.name == "qwen3"
    assert subject.config["model_type"] == "qwen3"
    assert subject.goldens.prompts


def test_cache_is_sized_in_tokens():
    """FW-6: 6 layers of 2 heads of 64, keys and values in float32, are 6 KiB a token."""
    subject = Subject.of("qwen3", CHECKPOINTS / "qwen3")

    assert [subject.cache_mb(n) for n in (0, 1, 170, 171, 8192)] == [1, 1, 1, 2, 48]


def test_unknown_family_is_a_typed_error():
    """FW-1: a family that is not installed names its distribution."""
    with pytest.raises(FamilyNotInstalledError, match="neve-mystery"):
        Subject.of("mystery", CHECKPOINTS / "qwen3")


def test_another_familys_checkpoint_is_refused():
    """FW-6: the suite never tests another family than the one that was named."""
    with pytest.raises(CheckpointError, match=r"'gemma4\w*' is not of the family 'qwen3'"):
        Subject.of("qwen3", CHECKPOINTS / "gemma4")


def test_wrong_path_is_a_typed_error(tmp_path: Path):
    """FW-6: a folder that is no checkpoint says what it lacks."""
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Subject.of("qwen3", tmp_path)
