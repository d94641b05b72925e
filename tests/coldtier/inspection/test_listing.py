"""What a store holds, as its objects say."""

from __future__ import annotations

import json

import pytest

from neve.coldtier.inspection.listing import (
    Amount,
    ObjectEntry,
    UnknownModelError,
    entries_of,
    list_entries,
    survey,
)
from neve.coldtier.objects.format import KvGeometry, encode, encode_tokens, kv_layout
from neve.coldtier.objects.header import ObjectLayout, TensorSpec
from neve.coldtier.objects.keys import ColdChain, ColdGroup, ObjectName
from neve.coldtier.store.index import DEPTH_NS
from neve.contract.page_format import keys_and_values
from neve.ids import ColdKey, Fingerprint

ALICE, BOB = Fingerprint(b"\xa1" * 32), Fingerprint(b"\xb0" * 32)
LAYOUT = kv_layout(KvGeometry(4, 1, keys_and_values(1, 2, 2), "F32"))
STATE = ObjectLayout(ColdGroup.CONV_STATE, [TensorSpec("layer.0.conv", "BF16", (2,))])


@pytest.fixture
def store(make_store):
    return make_store(quota_bytes=10**6)


def write_chain(store, fingerprint, num_blocks, stamp_ns, state=False):
    """Write a chain of blocks, and state behind the last one."""
    chain, tokens = ColdChain(fingerprint, 4), list(range(4 * num_blocks))
    chain.extend(tokens, num_blocks)
    for index, name in enumerate(chain.blocks):
        payload = [encode_tokens(tokens[4 * index : 4 * index + 4]), bytes(32), bytes(32)]
        parts = encode(name, fingerprint, LAYOUT, payload)
        store.write(name, parts, stamp_ns - DEPTH_NS * index)
    if state:
        name = chain.sidecar(ColdGroup.CONV_STATE, tokens, 4 * num_blocks)
        store.write(name, encode(name, fingerprint, STATE, [bytes(4)]), stamp_ns)
    return chain.blocks


def write_head(store, name, head: bytes) -> None:
    store.write(name, [len(head).to_bytes(8, "little") + head], 1)


def test_listing(store, clock):
    """CT-12: each object tells its model, size, last use, and a block its number of tokens."""
    now = clock()
    blocks = write_chain(store, ALICE, 2, now)

    assert list_entries(store) == [
        ObjectEntry(blocks[0], LAYOUT.max_bytes, now, ALICE, 4),
        ObjectEntry(blocks[1], LAYOUT.max_bytes, now - DEPTH_NS, ALICE, 4),
    ]


def test_state_has_no_number_of_tokens(store, clock):
    """CT-12: what lies beside the blocks is listed with its group."""
    write_chain(store, ALICE, 1, clock(), state=True)
    (found,) = (e for e in list_entries(store) if e.name.group is ColdGroup.CONV_STATE)

    assert (found.model, found.num_tokens) == (ALICE, None)


@pytest.mark.parametrize(
    "change",
    [
        {"abi": "neve-cold-v2"},
        {"key": "00" * 32},
        {"group": "conv_state"},
        {"fingerprint": "A1" * 32},
        {"fingerprint": "a1"},
        {"fingerprint": 1},
    ],
)
def test_unreadable_header(store, make_name, change):
    """CT-12: an object that says nothing usable of its model belongs to none."""
    name = make_name(1)
    metadata = {
        "abi": "neve-cold-v1",
        "group": "kv",
        "key": name.key.hex(),
        "fingerprint": ALICE.hex(),
    }
    text = json.dumps({"__metadata__": metadata | change}, separators=(",", ":"))
    write_head(store, name, text.encode())

    assert [entry.model for entry in list_entries(store)] == [None]


@pytest.mark.parametrize(
    "head",
    [b"", b"{", b"\xff" * 90, b'{"__metadata__":' + b"[" * 2000, b'{"__metadata__":7}'],
)
def test_garbage(store, make_name, head):
    """CT-12: whatever lies in a file, the listing goes on."""
    write_head(store, make_name(1), head)

    assert [entry.model for entry in list_entries(store)] == [None]


@pytest.mark.parametrize("size", ["0", "-4", "9" * 40, "x", 16])
def test_impossible_number_of_tokens(store, make_name, size):
    """CT-12: a number of tokens that can't be is none."""
    name = make_name(1)
    identity = f'"abi":"neve-cold-v1","group":"kv","key":"{name.key.hex()}"'
    head = f'{{"__metadata__":{{{identity},"block_size":{json.dumps(size)}}}}}'
    write_head(store, name, head.encode())

    assert [entry.num_tokens for entry in list_entries(store)] == [None]


def test_object_that_has_gone(store, clock, path_of):
    """CT-12: what another process removed meanwhile is not listed."""
    blocks = write_chain(store, ALICE, 2, clock())
    path_of(blocks[1]).unlink()

    assert [entry.name for entry in list_entries(store)] == [blocks[0]]


def test_object_that_may_not_be_read(store, make_name, monkeypatch):
    """CT-12: a file that is there and can't be read is listed."""
    write_head(store, make_name(1), b"")
    monkeypatch.setattr(store, "read", lambda *_: None)

    assert [entry.model for entry in list_entries(store)] == [None]


def test_survey(store, clock):
    """CT-12: sums by group and by model, the largest model first, and the oldest use."""
    now = clock()
    write_chain(store, ALICE, 1, now)
    write_chain(store, BOB, 2, now - 10**9, state=True)
    found = survey(store)
    blocks, state = LAYOUT.max_bytes, STATE.max_bytes

    assert found.root == store.root
    assert (found.usage.num_objects, found.usage.num_bytes) == (4, 3 * blocks + state)
    assert dict(found.groups) == {
        ColdGroup.KV: Amount(3, 3 * blocks),
        ColdGroup.CONV_STATE: Amount(1, state),
    }
    assert list(found.models.items()) == [
        (BOB, Amount(3, 2 * blocks + state)),
        (ALICE, Amount(1, blocks)),
    ]
    assert (found.oldest_ns, found.newest_ns) == (now - 10**9 - DEPTH_NS, now)


def test_survey_of_nothing(store):
    """CT-12: an empty store has no oldest use."""
    found = survey(store)

    assert (found.groups, found.models) == ({}, {})
    assert (found.oldest_ns, found.newest_ns) == (None, None)


def entry(model: Fingerprint | None) -> ObjectEntry:
    return ObjectEntry(ObjectName(ColdKey(bytes(32))), 1, 1, model)


def test_objects_of_one_model():
    """CT-12: a model is named by the beginning of its fingerprint."""
    entries = [entry(ALICE), entry(BOB), entry(None), entry(ALICE)]

    assert entries_of(entries, "A1a") == [entries[0], entries[3]]


@pytest.mark.parametrize("prefix", ["", "c", "b0b0x", "a1"])
def test_no_or_several_models(prefix):
    """CT-12: a beginning that fits none or several is refused, and the known ones are said."""
    entries = [entry(ALICE), entry(BOB), entry(Fingerprint(b"\xa1" + bytes(31)))]

    with pytest.raises(UnknownModelError, match=r"known: a1000000.*b0b0b0b0"):
        entries_of(entries, prefix)
