from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.coldtier.objects.claims import HEAD_BYTES, Link, link_of
from neve.coldtier.objects.format import encode, encode_tokens, sidecar_layout
from neve.coldtier.objects.geometry import KvGeometry, kv_layout
from neve.coldtier.objects.keys import ROOT, ColdGroup, ObjectName
from neve.contract.page_format import keys_and_values
from neve.contract.sidecar import SidecarLayout, SidecarTensor
from neve.ids import ColdKey, Fingerprint

GEOMETRY = KvGeometry(4, 1, keys_and_values(1, 2, 2), "F32")
NAME = ObjectName(ColdKey(b"k" * 32))
AFTER = ColdKey(b"a" * 32)
STATES = [group for group in ColdGroup if group is not ColdGroup.KV]


def block(state: ColdGroup | None, after: ColdKey = AFTER) -> bytes:
    layout = kv_layout(GEOMETRY, state)
    payload = [encode_tokens(range(4)), *(bytes(t.num_bytes) for t in layout.tensors[1:])]
    return b"".join(encode(NAME, Fingerprint(bytes(32)), layout, payload, after))


@pytest.mark.parametrize("state", [None, *STATES])
def test_a_block_says_what_it_needs(state: ColdGroup | None) -> None:
    """R: KV-4: the block before it, and a kind of state where its family keeps any."""
    assert link_of(block(state)[:HEAD_BYTES], NAME) == Link(AFTER, state)
    assert link_of(block(state, ROOT), NAME) == Link(ROOT, state)


@pytest.mark.parametrize("group", STATES)
def test_a_state_says_what_it_needs(group: ColdGroup) -> None:
    """R: KV-4: the block that it stands behind."""
    layout = sidecar_layout(group, SidecarLayout(1, [SidecarTensor("x", (3,), "float32")]), 8)
    name = ObjectName(NAME.key, group)
    data = b"".join(encode(name, Fingerprint(bytes(32)), layout, [bytes(12)], AFTER))

    assert link_of(data, name) == Link(AFTER)


def test_another_object_says_nothing() -> None:
    """CT-3: an object under a name that is not its own is taken at no word."""
    assert link_of(block(None), ObjectName(AFTER)) is None


@given(st.binary(max_size=200), st.integers(0, 600))
def test_damage_says_nothing_or_the_truth(noise: bytes, at: int) -> None:
    """CT-3: whatever stands in the file, nothing is raised."""
    data = block(ColdGroup.CONV_STATE)
    link_of(data[:at] + noise + data[at + len(noise) :], NAME)
    assert link_of(noise, NAME) is None
