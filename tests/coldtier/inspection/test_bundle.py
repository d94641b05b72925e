"""Objects on their way from one store to another."""

from __future__ import annotations

import io
import tarfile
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neve.coldtier.inspection.bundle import ImportReport, export_objects, import_bundle
from neve.coldtier.inspection.verification import MAX_OBJECT_BYTES
from neve.coldtier.objects.format import encode
from neve.coldtier.objects.header import ObjectLayout, TensorSpec
from neve.coldtier.objects.keys import ColdGroup
from neve.coldtier.store.quota import WriteOutcome
from neve.errors import BundleError
from neve.ids import Fingerprint

LAYOUT = ObjectLayout(ColdGroup.KV, [TensorSpec("tokens", "U32", (4,))])
FINGERPRINT = Fingerprint(b"f" * 32)
SIZE = LAYOUT.max_bytes


@pytest.fixture
def store(make_store):
    return make_store(quota_bytes=10**6)


@pytest.fixture
def other(make_store, tmp_path):
    """Return a store in another folder."""
    return make_store(quota_bytes=10**6, folder=tmp_path / "other")


@pytest.fixture
def bundle(tmp_path):
    return tmp_path / "bundle.tar"


def data_of(name, value=0) -> bytes:
    return b"".join(encode(name, FINGERPRINT, LAYOUT, [bytes([value]) * 16]))


@pytest.fixture
def names(store, make_name):
    """Write four objects, each older than the one before."""
    names = [make_name(i) for i in range(4)]
    for i, name in enumerate(names):
        store.write(name, [data_of(name)], 1000 - i)
    return names


def write_tar(path, *members, tar_format=tarfile.USTAR_FORMAT) -> None:
    """Write pairs of a name or a header and data."""
    with tarfile.open(path, "w", format=tar_format) as tar:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def files_below(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def keys_of(store):
    return [info.name for info in reversed(store.objects())]


# -- export --------------------------------------------------------------------------------


def test_a_bundle_is_a_plain_tar_of_objects(store, names, bundle):
    """CT-12: any tar program can read a bundle; it is private and does not name its maker."""
    done = export_objects(store, names, bundle)

    assert (done.num_objects, done.num_bytes, done.num_skipped) == (4, 4 * SIZE, 0)
    assert bundle.stat().st_mode & 0o777 == 0o600
    with tarfile.open(bundle, "r:") as tar:
        assert [member.name for member in tar] == [name.file_name for name in names]
        assert {(m.uid, m.gid, m.uname, m.mtime, m.mode) for m in tar} == {(0, 0, "", 0, 0o600)}
        found = tar.extractfile(names[0].file_name)
        assert found is not None
        assert found.read() == data_of(names[0])


def test_what_is_gone_or_unsound_is_left_out(store, names, bundle, path_of, make_name):
    """CT-12: a bundle has sound objects only."""
    path_of(names[1]).write_bytes(b"short")
    done = export_objects(store, [*names, make_name("nobody")], bundle)

    assert (done.num_objects, done.num_skipped) == (3, 2)


def test_no_file_is_overwritten(store, names, bundle):
    """CT-12: a file that exists stays as it is."""
    bundle.write_text("precious")

    with pytest.raises(FileExistsError):
        export_objects(store, names, bundle)
    assert bundle.read_text() == "precious"


def test_a_failed_export_leaves_no_file(store, names, bundle, monkeypatch):
    """CT-12: half a bundle is none."""

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(store, "read", fail)

    with pytest.raises(OSError, match="disk full"):
        export_objects(store, names, bundle)
    assert not bundle.exists()


# -- import --------------------------------------------------------------------------------


def test_round_trip(store, names, other, bundle):
    """CT-12: another store gets the same objects, byte for byte, in the same order of use."""
    export_objects(store, names, bundle)

    assert import_bundle(other, bundle) == ImportReport(4, 4 * SIZE, 0)
    assert keys_of(other) == names
    assert all(other.read(n, SIZE).data == store.read(n, SIZE).data for n in names)
    other.check()


def test_objects_that_are_there_are_used(store, names, other, bundle):
    """CT-12: an object that is there is not written again, and not older than its heirs."""
    other.write(names[1], [data_of(names[1])], 1)
    export_objects(store, names, bundle)

    assert import_bundle(other, bundle) == ImportReport(3, 3 * SIZE, 1)
    assert keys_of(other) == names


def test_quota(store, names, make_store, bundle, tmp_path):
    """CT-12: a store takes what its quota allows, the head first, and refuses the rest."""
    small = make_store(quota_bytes=2 * SIZE, folder=tmp_path / "small")
    export_objects(store, names, bundle)
    done = import_bundle(small, bundle)

    assert done == ImportReport(2, 2 * SIZE, 0, num_left=2, refusal=WriteOutcome.QUOTA)
    assert keys_of(small) == names[:2]


def hostile_names(name):
    file_name = name.file_name
    return [
        "../" + file_name,
        "/tmp/" + file_name,
        "objects/" + file_name,
        "./" + file_name,
        file_name.upper(),
        file_name + "/",
        file_name.replace(".safetensors", ".kv.safetensors"),
        file_name.removesuffix(".safetensors"),
        "../../../etc/passwd",
        ".",
        "",
        "digests.json",
        "\x1b[2J",
    ]


@pytest.mark.parametrize("number", range(13))
def test_hostile_names(other, make_name, bundle, tmp_path, number):
    """CT-12: a member that is not called as an object is refused, and nothing is written."""
    name = make_name(1)
    write_tar(bundle, (name.file_name, data_of(name)), (hostile_names(name)[number], b"x"))
    before = files_below(tmp_path)

    with pytest.raises(BundleError, match="members must be cold objects"):
        import_bundle(other, bundle)
    assert files_below(tmp_path) == before


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.DIRTYPE,
        tarfile.FIFOTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.CONTTYPE,
        tarfile.GNUTYPE_SPARSE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        b"Z",
    ],
)
def test_hostile_kinds(other, make_name, bundle, tmp_path, kind):
    """CT-12: links, folders, devices, sparse files and extension headers are refused."""
    name = make_name(1)
    info = tarfile.TarInfo(name.file_name)
    info.type, info.linkname = kind, "/etc/passwd"
    write_tar(bundle, (info, data_of(name)))
    before = files_below(tmp_path)

    with pytest.raises(BundleError, match="members must be cold objects"):
        import_bundle(other, bundle)
    assert files_below(tmp_path) == before


def test_extended_size_is_refused(other, make_name, bundle):
    """CT-12: no extension header says that a member is larger than its own header does."""
    info = tarfile.TarInfo(make_name(1).file_name)
    info.pax_headers = {"size": "99999999999"}
    write_tar(bundle, (info, b"x"), tar_format=tarfile.PAX_FORMAT)

    with pytest.raises(BundleError, match="members must be cold objects"):
        import_bundle(other, bundle)


def test_duplicates(other, make_name, bundle, tmp_path):
    """CT-12: an object that is in a bundle twice makes it none."""
    name = make_name(1)
    write_tar(bundle, (name.file_name, data_of(name)), (name.file_name, data_of(name, 1)))
    before = files_below(tmp_path)

    with pytest.raises(BundleError, match="twice"):
        import_bundle(other, bundle)
    assert files_below(tmp_path) == before


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (0, "must have 1 to"),
        (MAX_OBJECT_BYTES + 1, "must have 1 to"),
        (1 << 60, "must have 1 to"),
        (-1, "must have 1 to"),
        (MAX_OBJECT_BYTES, "cut off"),
    ],
)
def test_sizes(other, make_name, bundle, size, says):
    """CT-12: a size that no object has, or the file has not, is refused before it is read."""
    info = tarfile.TarInfo(make_name(1).file_name)
    info.size = size
    bundle.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))

    with pytest.raises(BundleError, match=says):
        import_bundle(other, bundle)


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 512, bytes(100), b"PK\x03\x04" * 512])
def test_no_tar(other, bundle, content):
    """CT-12: any other file is refused with a sentence."""
    bundle.write_bytes(content)

    with pytest.raises(BundleError, match="the file is no bundle"):
        import_bundle(other, bundle)


def test_empty_tar(other, bundle):
    """CT-12: a bundle without objects is a mistake, and says so."""
    write_tar(bundle)

    with pytest.raises(BundleError, match="the bundle is empty"):
        import_bundle(other, bundle)


def test_unsound_object(store, names, other, bundle):
    """CT-12: an object that is not whole ends the import; the sound ones before it stay."""
    export_objects(store, names, bundle)
    data = bytearray(bundle.read_bytes())
    begin = 2 * (512 + -(-SIZE // 512) * 512) + 512
    data[begin + SIZE - 1] ^= 1  # in the third object
    bundle.write_bytes(data)

    with pytest.raises(BundleError, match=f"{names[2].file_name}.*checksum") as caught:
        import_bundle(other, bundle)
    assert caught.value.num_imported == 2
    assert keys_of(other) == names[:2]


def test_misnamed_object(other, make_name, bundle):
    """CT-12: an object under another one's name is refused."""
    write_tar(bundle, (make_name(1).file_name, data_of(make_name(2))))

    with pytest.raises(BundleError, match="says that it is"):
        import_bundle(other, bundle)
    assert keys_of(other) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.data())
def test_flipped_bits(store, names, other, bundle, tmp_path, data):
    """CT-12: whatever bit of a bundle flips, what is imported is what was exported."""
    other.clear()
    bundle.unlink(missing_ok=True)
    export_objects(store, names, bundle)
    changed = bytearray(bundle.read_bytes())
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    bundle.write_bytes(changed)
    outside = {p for p in tmp_path.rglob("*") if not p.is_relative_to(other.root)}
    with suppress(BundleError):
        import_bundle(other, bundle)

    assert {p for p in tmp_path.rglob("*") if not p.is_relative_to(other.root)} == outside
    assert all(other.read(n, SIZE).data == data_of(n) for n in keys_of(other))
