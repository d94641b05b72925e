from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.coldtier.objects.keys import ColdChain, ColdGroup, ObjectName, object_key
from neve.ids import SHARED_DOMAIN, ColdKey, Fingerprint, SaltDomain

MODEL = Fingerprint(bytes(range(32)))
OTHER_MODEL = Fingerprint(bytes(range(1, 33)))
PARENT = ColdKey(b"p" * 32)
ROOT = ColdKey(bytes(32))
SIDECARS = [group for group in ColdGroup if group is not ColdGroup.KV]

groups = st.sampled_from(list(ColdGroup))
token_ids = st.lists(st.integers(0, 2**32 - 1), max_size=4)
extra_keys = st.lists(st.integers(0, 2**64 - 1), max_size=3)
salts = st.integers(0, 2**64 - 1).map(SaltDomain)
components = st.tuples(
    groups,
    st.sampled_from([MODEL, OTHER_MODEL]),
    st.sampled_from([ROOT, PARENT]),
    st.integers(0, 3),
    token_ids,
    extra_keys,
    st.sampled_from([SHARED_DOMAIN, SaltDomain(1), SaltDomain(2)]),
)
names = st.builds(ObjectName, st.binary(min_size=32, max_size=32).map(ColdKey), groups)


def make_chain(salt: int = SHARED_DOMAIN, extra_keys=(), tokens: Sequence[int] = range(8)):
    chain = ColdChain(MODEL, 2, SaltDomain(salt), extra_keys)
    chain.extend(tokens, len(tokens) // 2)
    return chain


def test_key_is_this_digest():
    """CT-2: the layout of what is hashed is part of the format: stores outlive a release."""
    data = b"neve-cold-v1" + bytes([2]) + b"kv" + MODEL + ROOT
    data += struct.pack("<4Q", 0, 9, 2, 1) + struct.pack("<2I", 5, 6) + struct.pack("<Q", 7)

    key = object_key(ColdGroup.KV, MODEL, ROOT, 0, [5, 6], [7], SaltDomain(9))
    assert key == hashlib.sha256(data).digest()


@pytest.mark.parametrize(
    "change",
    [
        {"group": ColdGroup.CONV_STATE},
        {"fingerprint": OTHER_MODEL},
        {"parent": PARENT},
        {"index": 1},
        {"tokens": [1, 2, 4]},
        {"tokens": [1, 2]},
        {"extra_keys": [5]},
        {"salt": SaltDomain(7)},
    ],
    ids=lambda change: "-".join(change),
)
def test_every_component_enters_the_key(change):
    """CT-2: group, model, parent, index, tokens, extra keys and salt each make another key."""
    same: dict[str, Any] = {
        "group": ColdGroup.KV,
        "fingerprint": MODEL,
        "parent": ROOT,
        "index": 0,
        "tokens": [1, 2, 3],
        "extra_keys": [4],
        "salt": SaltDomain(6),
    }

    assert object_key(**(same | change)) != object_key(**same)


def test_lengths_stand_before_what_they_count():
    """CT-2: bytes that move from one field to the next make another key.

    Two token ids have as many bytes as one extra key.
    """
    tokens_only = object_key(ColdGroup.KV, MODEL, ROOT, 0, [7, 0, 8, 0])
    one_of_each = object_key(ColdGroup.KV, MODEL, ROOT, 0, [7, 0], [8])
    extras_only = object_key(ColdGroup.KV, MODEL, ROOT, 0, [], [7, 8])

    assert len({tokens_only, one_of_each, extras_only}) == 3


@given(a=components, b=components)
def test_equal_keys_mean_equal_content(a, b):
    """CT-2: two keys are equal exactly if all that they stand for is.

    Of the salt, only that of block 0 stands for anything: the parent carries it on.
    """

    def content(parts):
        return parts[:-1] if parts[3] else parts

    assert (object_key(*a) == object_key(*b)) == (content(a) == content(b))


@given(salt=salts, other=salts, index=st.integers(1, 5))
def test_salt_enters_block_zero_only(salt, other, index):
    """CT-2: behind block 0 the salt is in the parent and nowhere else."""
    first, second = (
        object_key(ColdGroup.KV, MODEL, PARENT, index, [1], (), s) for s in (salt, other)
    )

    assert first == second


def test_chain_carries_the_salt_on():
    """KV-9: chains of two salts have no name in common, sidecars included."""
    shared, salted = make_chain(), make_chain(salt=3)
    states = [c.sidecar(ColdGroup.GDN_STATE, range(8), 8) for c in (shared, salted)]

    assert not set(shared.blocks) & set(salted.blocks)
    assert states[0] != states[1]


def test_chain_carries_its_past_on():
    """CT-2: one token of block 0 changes every name behind it."""
    tokens = list(range(8))
    names, others = make_chain().blocks, make_chain(tokens=[99, *tokens[1:]]).blocks

    assert not set(names) & set(others)
    assert names[:3] == make_chain(tokens=[*tokens[:6], 99, 99]).blocks[:3]


def test_chain_takes_each_blocks_extra_keys():
    """CT-2: what besides tokens decides a block enters there and is carried on."""
    plain, media = make_chain().blocks, make_chain(extra_keys=[(), (5,)]).blocks

    assert plain[0] == media[0]
    assert not set(plain[1:]) & set(media[1:])


def test_chain_computes_each_name_once():
    """CT-2: a chain that is extended piecemeal is the chain that is extended at once."""
    tokens, piecemeal = list(range(8)), ColdChain(MODEL, 2)
    piecemeal.extend(tokens, 1)
    first = piecemeal.blocks[0]
    piecemeal.extend(tokens, 4)
    piecemeal.extend(tokens, 2)

    assert piecemeal.blocks == make_chain().blocks
    assert piecemeal.blocks[0] is first


def test_groups_have_name_spaces_of_their_own():
    """CT-2: the block and the state of every group at one boundary differ in key and file."""
    chain, tokens = make_chain(), range(8)
    names = [chain.blocks[1], *(chain.sidecar(group, tokens, 4) for group in SIDECARS)]

    assert len({name.key for name in names}) == len(names)
    assert len({name.file_name for name in names}) == len(names)


def test_sidecar_is_named_like_the_block_before_its_boundary():
    """CT-2: a sidecar's key has the place, the parent and the tokens of that block."""
    chain = make_chain()
    expected = object_key(ColdGroup.CONV_STATE, MODEL, chain.blocks[0].key, 1, [2, 3])

    assert chain.sidecar(ColdGroup.CONV_STATE, range(8), 4).key == expected


@pytest.mark.parametrize("boundary", [0, -2, 3])
def test_sidecar_has_a_block_boundary(boundary):
    """CT-2: state is named only at a positive multiple of the block size."""
    with pytest.raises(ValueError, match="no boundary of gdn_state"):
        make_chain().sidecar(ColdGroup.GDN_STATE, range(8), boundary)


def test_blocks_are_no_sidecars():
    """CT-2: keys and values have one way to be named."""
    with pytest.raises(ValueError, match="no boundary of kv"):
        make_chain().sidecar(ColdGroup.KV, range(8), 4)


@given(names)
def test_file_name_parses_back(name):
    """CT-2: a file's name says which object it is."""
    assert ObjectName.parse(name.file_name) == name


@given(tokens=token_ids, salt=salts)
def test_file_name_reveals_nothing(tokens, salt):
    """KV-9: whatever the tokens and the salt, a name is as long and has the same shape."""
    key = object_key(ColdGroup.KV, MODEL, ROOT, 0, tokens, (), salt)
    stem, _, suffix = ObjectName(key).file_name.partition(".")

    assert (len(stem), suffix) == (64, "safetensors")
    assert bytes.fromhex(stem) == key


@pytest.mark.parametrize(
    "file_name",
    [
        "",
        "0" * 64,
        "0" * 63 + ".safetensors",
        "0" * 65 + ".safetensors",
        "A" * 64 + ".safetensors",
        "g" * 64 + ".safetensors",
        "\u0660" * 64 + ".safetensors",
        "0" * 64 + ".kv.safetensors",
        "0" * 64 + ".other.safetensors",
        "0" * 64 + ".gdn_state",
        "0" * 64 + ".safetensors\n",
        "0" * 64 + ".safetensors.tmp",
        "." + "0" * 64 + ".safetensors",
        "." + "0" * 64 + ".123.456.tmp",
        "../" + "0" * 64 + ".safetensors",
    ],
)
def test_no_other_file_is_an_object(file_name):
    """CT-8: a name that is not exactly of an object's form stands for none."""
    assert ObjectName.parse(file_name) is None


@given(st.text(alphabet="0a.fgkvsetnor_\n", max_size=90))
def test_only_its_own_names_parse(file_name):
    """CT-8: what parses is what the object would be called."""
    name = ObjectName.parse(file_name)

    assert name is None or name.file_name == file_name
