from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.coldtier.objects.header import ObjectLayout, TensorSpec, header_template
from neve.coldtier.objects.keys import ColdGroup, ObjectName
from neve.ids import ColdKey, Fingerprint

SPEC = TensorSpec("layer.0.key", "F16", (2, 3))
LAYOUT = ObjectLayout(ColdGroup.KV, [SPEC, TensorSpec("b", "U32", (5,))], [("size", "0" * 64)])


def render(layout: ObjectLayout, key: bytes, fingerprint: bytes) -> bytes:
    name = ObjectName(ColdKey(key), layout.group)
    template = header_template(layout)
    model = Fingerprint(fingerprint)
    before, rest = template.around_checksum(name, model, b"a" * 64)
    header = before + b"c" * 64 + rest
    assert template.after_of(header) == b"a" * 64
    return header


def test_each_piece_is_in_its_place() -> None:
    """CT-3: key, fingerprint, ancestor and checksum stand in the metadata, before the facts."""
    header = json.loads(render(LAYOUT, b"\x01" * 32, b"\x02" * 32)[8:])

    assert header == {
        "__metadata__": {
            "abi": "neve-cold-v1",
            "group": "kv",
            "key": "01" * 32,
            "fingerprint": "02" * 32,
            "after": "a" * 64,
            "checksum": "c" * 64,
            "size": "0" * 64,
        },
        "layer.0.key": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]},
        "b": {"dtype": "U32", "shape": [5], "data_offsets": [12, 32]},
    }


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.sampled_from(ColdGroup))
def test_the_payload_begins_aligned(sizes: list[int], group: ColdGroup) -> None:
    """CT-3: the header's length is in front, and a multiple of 64 with it."""
    layout = ObjectLayout(
        group, [TensorSpec(f"t{i}", "F32", (n,)) for i, n in enumerate(sizes)]
    )
    raw = render(layout, bytes(32), bytes(32))

    assert len(raw) % 64 == 0
    assert len(raw) == 8 + int.from_bytes(raw[:8], "little")
    assert layout.payload_bytes == 4 * sum(sizes)
    assert layout.max_bytes == len(raw) + layout.payload_bytes


def test_a_header_is_bounded() -> None:
    """CT-3: no header is written that a reader would refuse for its length."""
    layout = ObjectLayout(ColdGroup.KV, [TensorSpec(f"t{i}", "F32", (1,)) for i in range(6000)])

    with pytest.raises(ValueError, match="at most 262144 bytes"):
        header_template(layout)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "__metadata__"),
        ("name", 'a"b'),
        ("name", ""),
        ("name", "Ä"),
        ("dtype", "F64"),
        ("shape", ()),
        ("shape", (0,)),
        ("shape", (True,)),
        ("shape", (2.0,)),
        ("shape", (2**31,)),
        ("shape", (1,) * 9),
    ],
)
def test_a_tensor_is_sound(field: str, value: Any) -> None:
    """CT-3: a tensor that some reader would misread cannot be declared."""
    with pytest.raises(ValueError, match=field):
        attrs.evolve(SPEC, **{field: value})


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("tensors", (), "at least one tensor"),
        ("tensors", [SPEC, SPEC], "no two of one name"),
        ("facts", [("a", "1"), ("a", "2")], "different names"),
        ("facts", [("checksum", "1")], "different names"),
    ],
)
def test_names_are_unique(field: str, value: Any, says: str) -> None:
    """CT-3: nothing in a header stands twice."""
    with pytest.raises(ValueError, match=says):
        attrs.evolve(LAYOUT, **{field: value})
