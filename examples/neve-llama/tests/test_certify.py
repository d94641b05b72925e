"""Certification of a family that is not on neve's allowlist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import neve
from neve.certification import GateCase
from neve.errors import GateFailedError

pytestmark = pytest.mark.mlx

PROMPT = "Once upon a time there was a miller who lived by a river. " * 10


@pytest.fixture(autouse=True)
def _evidence_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests' evidence out of the user's folder."""
    monkeypatch.setenv("MLX_COLD_EVIDENCE_DIR", str(tmp_path / "evidence"))


def load(path: Path, store: Path, **settings: Any) -> neve.Model:
    return neve.load(
        path,
        dtype="float32",
        paged_cache_memory_mb=64,
        persist_paged_cache=True,
        cold_cache_dir=str(store),
        **settings,
    )


def restored_tokens(path: Path, store: Path) -> int:
    """Answer in two instances; return the tokens that the second one restored from disk."""
    restored: list[int] = []
    for _ in range(2):
        with load(path, store, certified_families=["llama"]) as model:
            model.wait_identified()
            usage = model.generate(PROMPT, max_tokens=8).usage
            restored.append(usage.restored_tokens)
    return restored[-1]


def test_without_evidence_nothing_is_written(tiny_llama: Path, tmp_path: Path) -> None:
    """CT-1, FW-5: off the list, no setting opens the tier, and an opt-in needs evidence."""
    for families in ([], ["llama"]):
        with load(tiny_llama, tmp_path / "store", certified_families=families) as model:
            model.generate(PROMPT, max_tokens=4)
            persistence, cold = model.info.persistence, model.stats().cold

        assert not persistence.persist
        assert not cold.enabled
        assert not (tmp_path / "store").exists()
    assert "evidence" in persistence.reason or "llama.json" in persistence.reason


def test_the_gate_earns_it(tiny_llama: Path, tmp_path: Path) -> None:
    """FW-5: after `certify` and an opt-in by name, the family restores from disk."""
    path = neve.certify(tiny_llama, dtype="float32", paged_cache_memory_mb=64)
    evidence = json.loads(path.read_text(encoding="utf-8"))

    assert evidence["family"] == "llama"
    assert evidence["figures"]["hits"] > 0
    assert restored_tokens(tiny_llama, tmp_path / "store") > 0
    with load(tiny_llama, tmp_path / "store") as model:  # not opted in by name
        assert not model.info.persistence.persist


@pytest.mark.parametrize(
    ("field", "value"),
    [("plugin_version", "0.0.1"), ("state_version", 7), ("distribution", "another")],
)
def test_evidence_of_another_plugin_is_refused(
    tiny_llama: Path, tmp_path: Path, field: str, value: object
) -> None:
    """FW-5: evidence holds only for the plugin that earned it."""
    path = neve.certify(tiny_llama, dtype="float32", paged_cache_memory_mb=64)
    evidence = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**evidence, field: value}), encoding="utf-8")
    with load(tiny_llama, tmp_path / "store", certified_families=["llama"]) as model:
        persistence = model.info.persistence

    assert not persistence.persist
    assert str(value) in persistence.reason or repr(evidence[field]) in persistence.reason


def test_a_family_that_fails_gets_nothing(tiny_llama: Path, tmp_path: Path) -> None:
    """FW-5: a failed gate is an error with the reason, and writes no evidence."""
    with pytest.raises(GateFailedError, match="nothing was restored"):
        neve.certify(tiny_llama, cases=[GateCase(PROMPT, "Something else entirely, no block")])

    assert not list((tmp_path / "evidence").glob("*"))
