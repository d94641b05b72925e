"""The user's handle on a store."""

from __future__ import annotations

import subprocess
import sys

import pytest

import neve
from neve.coldtier.inspection.handle import ColdStoreHandle, cold_store, limits_of
from neve.coldtier.objects.format import encode
from neve.coldtier.objects.header import ObjectLayout, TensorSpec
from neve.coldtier.objects.keys import ColdGroup
from neve.coldtier.stats import Counters
from neve.coldtier.store.directory import FORMAT
from neve.coldtier.store.quota import StoreLimits
from neve.coldtier.store.store import ColdStore
from neve.errors import SettingsError, StoreUnavailableError, UnknownModelError
from neve.ids import Fingerprint
from neve.settings import ColdSettings, Settings

LAYOUT = ObjectLayout(ColdGroup.KV, [TensorSpec("tokens", "U32", (4,))])
ALICE, BOB = Fingerprint(b"\xa1" * 32), Fingerprint(b"\xb0" * 32)
SIZE = LAYOUT.max_bytes


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    monkeypatch.setenv("MLX_COLD_MIN_FREE_GB", "0")
    monkeypatch.delenv("MLX_COLD_CACHE_DIR", raising=False)


@pytest.fixture
def handle(tmp_path, make_name):
    """Return a store: three objects of one model, and one of another that goes first."""
    root = tmp_path / FORMAT
    store = ColdStore.open(root, StoreLimits(min_free_bytes=0), Counters())
    for i, model in enumerate((ALICE, ALICE, ALICE, BOB)):
        name = make_name(i)
        store.write(name, encode(name, model, LAYOUT, [bytes(16)]), 1000 - i)
    store.close()
    with cold_store(tmp_path) as handle:
        yield handle


def test_public_name():
    """CT-12: `neve.cold_store` opens a store, and imports no MLX for it."""
    code = "import neve, sys; neve.cold_store; print('mlx.core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert done.stdout == b"False\n"
    assert neve.cold_store is cold_store
    assert neve.ColdStoreHandle is ColdStoreHandle


def test_where_a_store_lies(tmp_path, handle, monkeypatch):
    """CT-12: a store is named by its parent's folder, by itself, or by the settings."""
    settings = Settings(cold=ColdSettings(cold_cache_dir=str(tmp_path)))
    roots: list[object] = []
    for path, given in ((tmp_path / FORMAT, None), (None, settings)):
        with cold_store(path, settings=given) as store:
            roots.append(store.root)
    monkeypatch.setenv("MLX_COLD_CACHE_DIR", str(tmp_path))
    with cold_store() as store:
        roots.append(store.root)

    assert roots == [tmp_path / FORMAT] * 3 == [handle.root] * 3


def test_no_store_is_made_to_look_at(tmp_path):
    """CT-12: where there is no store, looking for one leaves nothing behind."""
    with pytest.raises(StoreUnavailableError, match="does not exist"):
        cold_store(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_store(tmp_path):
    """CT-12: a path through a file is refused with a sentence."""
    (tmp_path / "file").touch()

    with pytest.raises(StoreUnavailableError, match="does not exist"):
        cold_store(tmp_path / "file")


def test_store_is_made_if_asked_for(tmp_path):
    """CT-12: an import may begin a store."""
    with cold_store(tmp_path, create=True) as store:
        assert store.objects() == []


def test_limits(tmp_path):
    """CT-12: settings bound a store, as in an engine."""
    cold = ColdSettings(cold_quota_gb=0.5, cold_min_free_gb=1, cold_daily_write_gb=None)
    with cold_store(tmp_path, settings=Settings(cold=cold), create=True) as store:
        assert store.quota_bytes == 2**29

    assert limits_of(cold) == StoreLimits(2**29, 2**30, None)


def test_impossible_setting(tmp_path, monkeypatch):
    """CT-12: a wrong environment is said, not passed over."""
    monkeypatch.setenv("MLX_COLD_QUOTA_GB", "-1")

    with pytest.raises(SettingsError, match="cold_quota_gb"):
        cold_store(tmp_path)


def test_looking(handle, make_name):
    """CT-12: list, sum up, verify."""
    assert [entry.name for entry in handle.objects()] == [make_name(i) for i in range(4)]
    assert [entry.name for entry in handle.objects("b0")] == [make_name(3)]
    assert handle.stats().models[ALICE].num_objects == 3
    assert handle.verify().num_objects == 4


def test_prune(handle, make_name):
    """CT-12: the least recently used go first; a dry run only says so."""
    would = handle.prune(2 * SIZE, dry_run=True)
    assert len(handle.objects()) == 4

    assert handle.prune(2 * SIZE) == would
    assert [info.name for info in would] == [make_name(3), make_name(2)]
    assert len(handle.objects()) == 2


def test_clear(handle):
    """CT-12: all objects go, or those of one model."""
    with pytest.raises(UnknownModelError):
        handle.clear("c0")

    assert handle.clear("a1") == 3
    assert handle.clear() == 1
    assert handle.objects() == []


def test_carry(handle, tmp_path):
    """CT-12: entries of a listing can be exported, and imported elsewhere."""
    done = handle.export(tmp_path / "x.tar", handle.objects("a1"))
    assert done.num_objects == 3

    with cold_store(tmp_path / "other", create=True) as other:
        assert other.import_bundle(tmp_path / "x.tar").num_written == 3
        assert other.import_bundle(str(tmp_path / "x.tar")).num_present == 3


def test_two_handles(handle, tmp_path):
    """CT-12: a store can be looked at while another process changes it."""
    with cold_store(tmp_path) as other:
        other.clear()

    assert handle.objects() == []
    assert handle.verify().num_objects == 0
