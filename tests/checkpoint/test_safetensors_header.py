"""The safetensors header: what is accepted is sound, what is not is named."""

from __future__ import annotations

import json
import struct
import tracemalloc

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from neve.checkpoint.safetensors_header import ITEMSIZES, TensorEntry, read_header
from neve.errors import CheckpointError


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_a_real_file(qwen3_dir):
    """The entries of a real file are those that the safetensors library reads."""
    path = qwen3_dir / "model.safetensors"

    entries = read_header(path)

    with safetensors.safe_open(path, "numpy") as file:
        assert set(entries) == set(file.keys())
        for name, found in entries.items():
            expected = file.get_slice(name)
            assert (found.dtype, found.shape) == (
                expected.get_dtype(),
                tuple(expected.get_shape()),
            )


def test_null_metadata(tmp_path, write_safetensors):
    """Files that MLX wrote without metadata have a null in its place."""
    path = write_safetensors(tmp_path / "x", {"__metadata__": None, "w": entry()}, bytes(8))

    assert list(read_header(path)) == ["w"]


def test_what_is_accepted(tmp_path, write_safetensors):
    """Metadata, scalars, empty tensors, padding and any order of entries are sound."""
    header = {
        "__metadata__": {"format": "mlx"},
        "b": entry("U8", (4,), (4, 8)),
        "scalar": entry("F32", (), (0, 4)),
        "empty": entry("F32", (0, 3), (4, 4)),
    }
    raw = json.dumps(header).encode() + b"   "

    entries = read_header(write_safetensors(tmp_path / "x", raw, bytes(8)))

    assert entries["b"] == TensorEntry("U8", (4,), 4, 8)
    assert list(entries) == ["b", "scalar", "empty"]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (entry(offsets=(0, 9)), r"F32 \[2\] takes 8 bytes, data_offsets span 9"),
        (entry(offsets=(8, 0)), "data_offsets must be"),
        (entry(offsets=(-8, 0)), "data_offsets must be"),
        (entry(offsets=(False, 8)), "data_offsets must be"),
        (entry(offsets=(0.0, 8)), "data_offsets must be"),
        (entry(offsets=(0, 2**63)), "data_offsets must be"),
        (entry(offsets=(0, 8, 8)), "data_offsets must be"),
        (entry(offsets=(0, 4)), r"F32 \[2\] takes 8 bytes, data_offsets span 4"),
        (entry(shape=(-2,)), "shape .* must consist of integers"),
        (entry(shape=(True, 2)), "shape .* must consist of integers"),
        (entry(shape=(2.0,)), "shape .* must consist of integers"),
        (entry(shape=(2**63, 0)), "shape .* must consist of integers"),
        (entry(shape=[1] * 1000), "at most 32 integers"),
        ({**entry(), "shape": 2}, "at most 32 integers"),
        (entry(dtype="F31"), "dtype 'F31' is not one that MLX reads"),
        ({**entry(), "dtype": None}, "dtype None is not one"),
        ({"dtype": "F32", "shape": [2]}, "with the keys data_offsets, dtype, shape"),
        ({**entry(), "extra": 1}, "with the keys data_offsets, dtype, shape"),
        (7, "must be an object"),
    ],
)
def test_a_bad_entry_is_named(tmp_path, write_safetensors, bad, says):
    """A bad entry is refused with its file and its tensor."""
    path = write_safetensors(tmp_path / "x.safetensors", {"w": bad}, bytes(8))

    with pytest.raises(CheckpointError, match=rf"x\.safetensors: tensor 'w': .*{says}"):
        read_header(path)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"a": entry(), "b": entry(offsets=(4, 12))}, "'b' overlaps the tensor before"),
        ({"a": entry(), "b": entry()}, "'b' overlaps"),
        ({"a": entry(offsets=(4, 12))}, "hole of 4 bytes precedes tensor 'a'"),
        ({"a": entry()}, "take 8 bytes, but 16 follow"),
        ({}, "take 0 bytes, but 16 follow"),
        ({"__metadata__": []}, "__metadata__ must be an object of strings"),
        ({"__metadata__": {"a": 1}}, "__metadata__ must be an object of strings"),
    ],
)
def test_a_bad_layout(tmp_path, write_safetensors, entries, says):
    """Overlaps, holes and bytes that no tensor takes are refused."""
    with pytest.raises(CheckpointError, match=says):
        read_header(write_safetensors(tmp_path / "x", entries, bytes(16)))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is truncated: it has 0 bytes, too few"),
        (b"1234567", "7 bytes, too few"),
        (struct.pack("<Q", 2**63) + b"{}", f"claims a header of {2**63} bytes"),
        (struct.pack("<Q", 100_000_001) + b"{}", "at most 100000000"),
        (struct.pack("<Q", 3) + b"{}", "truncated"),
        (struct.pack("<Q", 0), "no JSON object"),
        (struct.pack("<Q", 2) + b"[]", "no JSON object"),
        (struct.pack("<Q", 3) + b" {}", "no JSON object"),
        (struct.pack("<Q", 2) + b"{x", "not valid JSON"),
        (struct.pack("<Q", 4) + b'{"\xff"', "not valid JSON"),
        (struct.pack("<Q", 5000) + b'{"a":' * 1000, "not valid JSON"),
        (struct.pack("<Q", 15) + b'{"a": 1,"a": 2}', "key 'a' is repeated"),
    ],
)
def test_no_header(tmp_path, content, says):
    """What is no header is refused with the file's name."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)

    with pytest.raises(CheckpointError, match=rf"x\.safetensors: .*{says}"):
        read_header(path)


def test_files_that_cannot_be_read(tmp_path):
    """A missing file is a checkpoint error too."""
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_header(tmp_path / "none.safetensors")


def test_a_false_length_costs_nothing(tmp_path, write_safetensors):
    """A header that claims to be huge is refused before memory is taken for it."""
    path = write_safetensors(tmp_path / "x", {"w": entry()}, bytes(8), length=99_999_999)

    tracemalloc.start()
    with pytest.raises(CheckpointError, match="truncated"):
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 1_000_000


NUMBERS = st.one_of(
    st.integers(-2, 20), st.booleans(), st.sampled_from([2**31, 2**63, 1.0, None, "4"])
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*ITEMSIZES, "F64", 1]),
        "shape": st.lists(st.one_of(st.integers(0, 3), NUMBERS), max_size=3),
        "data_offsets": st.lists(NUMBERS, min_size=1, max_size=3),
    }
)


@given(
    st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), ENTRIES), st.integers(0, 16)
)
def test_whatever_is_accepted_is_sound(tmp_path_factory, header, num_bytes):
    """Any header is refused with a typed error, or the safetensors library accepts it too."""
    raw = json.dumps(header).encode()
    data = struct.pack("<Q", len(raw)) + raw + bytes(num_bytes)
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(data)

    try:
        entries = read_header(path)
    except CheckpointError:
        return

    assert {name for name, _ in safetensors.deserialize(data)} == set(entries)


@given(st.data())
def test_flipped_bytes(tmp_path_factory, data):
    """A sound file with any bytes of its header replaced never fails in another way."""
    raw = json.dumps({"a": entry(), "b": entry("U8", (3, 1), (8, 11))}).encode()
    content = bytearray(struct.pack("<Q", len(raw)) + raw + bytes(11))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])

    try:
        entries = read_header(path)
    except CheckpointError:
        return

    assert sum(e.end - e.begin for e in entries.values()) == 11
