from __future__ import annotations

import json
import os
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.coldtier.objects.facts import PEEK_BYTES, peek, read_facts
from neve.coldtier.objects.format import encode
from neve.coldtier.objects.header import ObjectLayout, TensorSpec
from neve.coldtier.objects.keys import ColdGroup, ObjectName
from neve.errors import ObjectRejectedError
from neve.ids import ColdKey, Fingerprint

LAYOUT = ObjectLayout(
    ColdGroup.CONV_STATE, [TensorSpec("layer.0.conv", "BF16", (2, 3))], [("boundary", "16")]
)
NAME = ObjectName(ColdKey(bytes(range(32))), ColdGroup.CONV_STATE)
FINGERPRINT = Fingerprint(b"f" * 32)
AFTER = ColdKey(b"a" * 32)
DATA = b"".join(encode(NAME, FINGERPRINT, LAYOUT, [bytes(12)], AFTER))
HEADER = json.loads(DATA[8:-12])
METADATA = HEADER["__metadata__"]
ENTRY = HEADER["layer.0.conv"]


def with_header(header) -> bytes:
    """Return an object of that header; what JSON can't say is given as bytes."""
    raw = header if isinstance(header, bytes) else json.dumps(header).replace(" ", "").encode()
    raw = raw.ljust(-(-(8 + len(raw)) // 64) * 64 - 8)
    return len(raw).to_bytes(8, "little") + raw + bytes(12)


def test_what_an_object_says_of_itself() -> None:
    """CT-3: name, group, model, tensors and size are read from the header alone."""
    facts = peek(DATA[:-12])

    assert (facts.name, facts.fingerprint, facts.layout) == (NAME, FINGERPRINT, LAYOUT)
    assert facts.after == AFTER
    assert (facts.abi, facts.num_bytes) == ("neve-cold-v1", len(DATA))


def test_the_builder_of_these_tests_is_faithful() -> None:
    """CT-3: the header, parsed and written again, is the same one, byte for byte."""
    assert with_header(HEADER) == DATA


def test_facts_are_read_from_a_file(tmp_path) -> None:
    """CT-3: a file is read no further than its header may reach."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(DATA + bytes(2 * PEEK_BYTES))

    assert read_facts(path) == peek(DATA)


def test_only_regular_files_are_read(tmp_path) -> None:
    """CT-8: a pipe does not hold the reader up, and a link is not followed."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(DATA)
    (tmp_path / "link").symlink_to(tmp_path / "file")

    with pytest.raises(ObjectRejectedError, match="must be a regular file"):
        read_facts(tmp_path / "pipe")
    with pytest.raises(OSError, match="link"):
        read_facts(tmp_path / "link")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"abi": "neve-cold-v2"}, "format must be 'neve-cold-v1', not 'neve-cold-v2'"),
        ({"abi": "x" * 4096}, "format must be"),
        ({"abi": 1}, "object of strings"),
        ({"group": "kw"}, "'kw' is not a valid ColdGroup"),
        ({"group": "gdn_state"}, None),
        ({"key": "00"}, "key must have 32 bytes, not 1"),
        ({"key": "zz" * 32}, "hexadecimal"),
        ({"key": METADATA["key"].upper()}, "not as neve writes it"),
        ({"fingerprint": "00" * 31}, "fingerprint must have 32 bytes"),
        # together as long as they should be
        ({"key": "00" * 31, "fingerprint": "00" * 33}, "key must have 32 bytes"),
        ({"after": "00" * 31}, "after must have 32 bytes"),
        ({"after": "AB" * 32}, "not as neve writes it"),
        ({"checksum": ""}, "not as neve writes it"),
        ({"checksum": "0" * 63}, "not as neve writes it"),
        ({"checksum": None}, "object of strings"),
        ({"boundary": 16}, "object of strings"),
    ],
)
def test_metadata(change, says) -> None:
    """CT-3: metadata of another version, name or type is refused; only facts are free."""
    data = with_header({**HEADER, "__metadata__": METADATA | change})
    if says is None:
        assert peek(data).name.group is ColdGroup.GDN_STATE
        return

    with pytest.raises(ObjectRejectedError, match=says):
        peek(data)


@pytest.mark.parametrize("name", ["abi", "group", "key", "fingerprint", "after", "checksum"])
def test_metadata_is_complete(name: str) -> None:
    """CT-3: whatever the identity lacks, the object is refused."""
    metadata = {key: value for key, value in METADATA.items() if key != name}

    with pytest.raises(ObjectRejectedError, match=f"lacks {name}"):
        peek(with_header({**HEADER, "__metadata__": metadata}))


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (7, "must have data_offsets, dtype, shape"),
        ({**ENTRY, "more": 1}, "must have data_offsets, dtype, shape"),
        ({**ENTRY, "dtype": ["BF16"]}, "string as dtype"),
        ({**ENTRY, "shape": {"2": 3}}, "list as shape"),
        ({**ENTRY, "dtype": "F64"}, "dtype"),
        ({**ENTRY, "shape": [2, True]}, "shape must be"),
        ({**ENTRY, "shape": [2, 1e400]}, "shape must be"),
        ({**ENTRY, "shape": [2, float("nan")]}, "shape must be"),
        ({**ENTRY, "shape": [10**4000]}, "shape must be"),
        ({**ENTRY, "shape": [1] * 1000}, "shape must be"),
        ({**ENTRY, "data_offsets": [0, 11]}, "not as neve writes it"),
        ({**ENTRY, "data_offsets": [0, 12.0]}, "not as neve writes it"),
        ({**ENTRY, "data_offsets": [-12, 0]}, "not as neve writes it"),
        ({**ENTRY, "data_offsets": None}, "not as neve writes it"),
        (dict(reversed(ENTRY.items())), "not as neve writes it"),
    ],
)
def test_tensors(entry, says) -> None:
    """CT-3: a tensor that the writer could not have declared is refused."""
    with pytest.raises(ObjectRejectedError, match=says):
        peek(with_header({**HEADER, "layer.0.conv": entry}))


COMPACT = json.dumps(HEADER).replace(" ", "").encode()


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"", "no JSON object"),
        (b"[]", "no JSON object"),
        (b"\xff{}", "no JSON object"),
        (b"{}", "must be an object of strings"),
        (b'{"__metadata__":{}}', "lacks abi, group, key, fingerprint, after, checksum"),
        (b'{"a":"\xff"}', "decode"),
        (b'{"a":' * 50_000, "nests too deeply"),
        (b'{"a":' + b"[" * 50_000, "nests too deeply"),
        (b'{"a":' + b"9" * 100_000 + b"}", "integer string conversion"),
        (COMPACT[:-1] + b',"layer.0.conv":7}', "is repeated"),
        (COMPACT.replace(b'"key"', b'"abi":"","key"'), "is repeated"),
        (COMPACT + b"x", "Extra data"),
        (COMPACT.replace(b":", b": "), "not as neve writes it"),
        (COMPACT.replace(b'"conv_state"', rb'"conv\u005fstate"'), "not as neve writes it"),
        (COMPACT + b" " * 64, "not as neve writes it"),
    ],
)
def test_what_the_parser_refuses(header: bytes, says: str) -> None:
    """CT-3: JSON that is broken, ambiguous, deep, huge or merely written otherwise."""
    with pytest.raises(ObjectRejectedError, match=says) as caught:
        peek(with_header(header))

    assert caught.value.cause == "format"


def test_a_long_header_is_not_read() -> None:
    """CT-3: a header longer than any that is written is refused by its length."""
    with pytest.raises(ObjectRejectedError, match="at most 262144 bytes, not 262145"):
        peek((PEEK_BYTES - 7).to_bytes(8, "little") + bytes(PEEK_BYTES))


def test_the_worst_header_is_bounded() -> None:
    """CT-3: a header as long as allowed, of nothing but small values, takes a few megabytes."""
    data = with_header(b'{"a":[' + b"{}," * 87_000 + b"0]}")
    tracemalloc.start()
    try:
        with pytest.raises(ObjectRejectedError):
            peek(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 32_000_000


@given(st.binary(max_size=400), st.booleans())
def test_noise(noise: bytes, framed: bool) -> None:
    """CT-3: no bytes whatever raise anything but a rejection."""
    with pytest.raises(ObjectRejectedError):
        peek(with_header(noise) if framed else noise)
