from __future__ import annotations

import hashlib
import pickle
import random
import tracemalloc

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.coldtier.objects.format import (
    KvGeometry,
    ObjectLayout,
    TensorSpec,
    decode,
    decode_block,
    encode,
    encode_tokens,
    kv_layout,
    sidecar_layout,
    verify_object,
)
from neve.coldtier.objects.header import header_template
from neve.coldtier.objects.keys import ColdGroup, ObjectName
from neve.contract.page_format import PageFormat, Plane, keys_and_values
from neve.contract.sidecar import SidecarLayout, SidecarTensor
from neve.errors import ObjectRejectedError
from neve.ids import ColdKey, Fingerprint

GEOMETRY = KvGeometry(4, 2, keys_and_values(2, 8, 6), "BF16")
LAYOUT = kv_layout(GEOMETRY)
NAME = ObjectName(ColdKey(bytes(range(32))))
OTHER = ObjectName(ColdKey(bytes(range(1, 33))))
FINGERPRINT = Fingerprint(bytes(range(32, 64)))
TOKENS = (7, 0, 65536, 2**32 - 1)
HEADER_BYTES = LAYOUT.max_bytes - LAYOUT.payload_bytes


def make_payload(layout=LAYOUT, tokens=TOKENS, seed=0) -> list[bytes]:
    rng = random.Random(seed)
    layers = [rng.randbytes(tensor.num_bytes) for tensor in layout.tensors[1:]]
    return [encode_tokens(tokens), *layers]


def make(name=NAME, fingerprint=FINGERPRINT, layout=LAYOUT, payload=None) -> bytes:
    parts = encode(name, fingerprint, layout, payload or make_payload(layout))
    return b"".join(parts)


def cause_of(data, name=NAME, fingerprint=FINGERPRINT, layout=LAYOUT) -> str:
    with pytest.raises(ObjectRejectedError) as caught:
        decode(data, name, fingerprint, layout)
    return caught.value.cause


geometries = st.builds(
    KvGeometry,
    block_size=st.integers(1, 32),
    num_layers=st.integers(1, 8),
    page=st.builds(keys_and_values, st.integers(1, 4), st.integers(1, 16), st.integers(1, 16)),
    dtype=st.sampled_from(["F32", "F16", "BF16"]),
)


@settings(max_examples=50)
@given(geometries, st.binary(min_size=32, max_size=32), st.randoms())
def test_a_block_round_trip(geometry: KvGeometry, key: bytes, rng: random.Random) -> None:
    """CT-3: what was encoded comes back bit for bit, in the layout's order."""
    layout = kv_layout(geometry)
    name = ObjectName(ColdKey(key))
    tokens = [rng.randrange(2**32) for _ in range(geometry.block_size)]
    payload = make_payload(layout, tokens, rng.randrange(2**32))
    data = make(name, FINGERPRINT, layout, payload)

    assert len(data) == layout.max_bytes
    assert decode(data, name, FINGERPRINT, layout) == payload
    assert decode_block(data, name, FINGERPRINT, layout, tokens) == payload[1:]


@pytest.mark.parametrize("group", [group for group in ColdGroup if group is not ColdGroup.KV])
def test_a_sidecar_round_trip(group: ColdGroup) -> None:
    """SD-3: state of two kinds comes back bit for bit."""
    tensors = [
        SidecarTensor("conv", (3, 5), "bfloat16"),
        SidecarTensor("ssm", (2, 4), "float32"),
    ]
    layout = sidecar_layout(group, SidecarLayout(3, tensors), 48)
    name = ObjectName(NAME.key, group)
    payload = [random.Random(i).randbytes(t.num_bytes) for i, t in enumerate(layout.tensors)]
    data = make(name, FINGERPRINT, layout, payload)

    assert decode(data, name, FINGERPRINT, layout) == payload


def test_nothing_is_copied() -> None:
    """CT-3: encoding hands on the caller's memory, decoding shows the file's."""
    payload = [bytearray(piece) for piece in make_payload()]
    parts = encode(NAME, FINGERPRINT, LAYOUT, payload)
    data = make()

    assert [memoryview(part).obj for part in parts[1:]] == payload
    assert all(view.obj is data for view in decode(data, NAME, FINGERPRINT, LAYOUT))


def test_the_checksum_is_that_of_the_file() -> None:
    """CT-3: it is the SHA-256 of the file without the checksum's own 64 digits."""
    data = make()
    at = data.index(b'"checksum":"') + len(b'"checksum":"')

    assert (
        data[at : at + 64].decode() == hashlib.sha256(data[:at] + data[at + 64 :]).hexdigest()
    )


def test_every_bit_of_a_small_object_counts() -> None:
    """CT-3: a flip of any bit, in header, checksum or payload, is a rejection."""
    data = bytearray(make())
    for index in range(len(data)):
        for bit in range(8):
            data[index] ^= 1 << bit
            cause_of(data)
            data[index] ^= 1 << bit

    assert data == make()


def test_random_flips_in_a_large_object() -> None:
    """CT-3: another byte at any of 2,000 places is a rejection, with tokens or without."""
    layout = kv_layout(KvGeometry(16, 8, keys_and_values(2, 32, 32), "F16"))
    tokens = range(16)
    data = bytearray(make(layout=layout, payload=make_payload(layout, tokens)))
    rng = random.Random(3)
    for _ in range(2000):
        index, change = rng.randrange(len(data)), rng.randrange(1, 256)
        data[index] ^= change
        with pytest.raises(ObjectRejectedError):
            decode_block(data, NAME, FINGERPRINT, layout, tokens)
        data[index] ^= change

    assert len(decode_block(data, NAME, FINGERPRINT, layout, tokens)) == 16


def test_a_flip_has_the_cause_of_its_place() -> None:
    """CT-3: in the payload and in the checksum it is the checksum that tells."""
    data = make()
    digits = data.index(b'"checksum":"') + len(b'"checksum":"')

    for index in (HEADER_BYTES, len(data) - 1, digits, digits + 63):
        flipped = bytearray(data)
        flipped[index] ^= 1
        assert cause_of(flipped) == "checksum"


def test_every_truncation() -> None:
    """CT-3: an object that was cut anywhere is a rejection."""
    data = make()

    assert {cause_of(data[:length]) for length in range(len(data))} == {"format"}


@pytest.mark.parametrize("tail", [b"\0", b" ", bytes(64), b"x" * 4096])
def test_trailing_bytes(tail: bytes) -> None:
    """CT-3: one byte more than the geometry asks for is a rejection."""
    assert cause_of(make() + tail) == "format"


def test_swapped_objects() -> None:
    """CT-3: a sound object under another's name is a rejection, though equal in size."""
    one, two = make(), make(OTHER, payload=make_payload(seed=1))

    assert len(one) == len(two)
    assert (cause_of(two, NAME), cause_of(one, OTHER)) == ("format", "format")


def test_another_model() -> None:
    """CT-3: an object of another fingerprint is foreign."""
    assert cause_of(make(fingerprint=Fingerprint(bytes(32)))) == "fingerprint"


@pytest.mark.parametrize(
    "change",
    [
        {"num_layers": 1},
        {"num_layers": 9},
        {"page": keys_and_values(1, 16, 12)},  # as many bytes
        {"page": keys_and_values(2, 6, 8)},
        {"page": PageFormat([Plane("values", 2, 8), Plane("keys", 2, 6)])},
        {"dtype": "F16"},
        {"dtype": "F32"},
    ],
)
def test_another_geometry(change) -> None:
    """CT-3: an object of another geometry is a rejection, also if it is equal in size."""
    layout = kv_layout(attrs.evolve(GEOMETRY, **change))

    assert cause_of(make(layout=layout)) == "layout"


@pytest.mark.parametrize("tokens", [(7, 0, 65536, 1), (7, 0, 65536), (), (*TOKENS, 1)])
def test_other_tokens(tokens) -> None:
    """CT-3: a block is used only for the tokens that it holds."""
    with pytest.raises(ObjectRejectedError) as caught:
        decode_block(make(), NAME, FINGERPRINT, LAYOUT, tokens)

    assert caught.value.cause == "layout"


@pytest.mark.parametrize("abi", [b"neve-cold-v2", b"neve-cold-v0", b"safetensors."])
def test_another_format(abi: bytes) -> None:
    """CT-3: another version's object is a rejection, whatever else it says."""
    assert cause_of(make().replace(b"neve-cold-v1", abi, 1)) == "format"


def test_an_object_without_checksum() -> None:
    """CT-3: an object that does not say its checksum is a rejection."""
    data = make()
    at = data.index(b'"checksum":"')
    end = at + len(b'"checksum":"",') + 64
    bare = data[:at] + data[end:HEADER_BYTES] + b" " * (end - at) + data[HEADER_BYTES:]
    blank = data[: at + 12] + b"0" * 64 + data[at + 76 :]

    assert (cause_of(bare), cause_of(blank)) == ("format", "checksum")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(LAYOUT.max_bytes),
        b"\xff" * LAYOUT.max_bytes,
        b" " * LAYOUT.max_bytes,
        pickle.dumps({"tokens": TOKENS}).ljust(LAYOUT.max_bytes, b"\0"),
        (2**63).to_bytes(8, "little") + make()[8:],
        (2**64 - 1).to_bytes(8, "little") + make()[8:],
    ],
)
def test_no_object_at_all(data: bytes) -> None:
    """CT-3: zeros, ones, spaces, a pickle or an absurd length are a rejection."""
    assert cause_of(data) == "format"


def test_a_claim_costs_nothing() -> None:
    """CT-3: a sound header that claims petabytes costs a reader next to nothing."""
    layout = ObjectLayout(ColdGroup.KV, [TensorSpec("a", "F32", (2**31 - 1,) * 8)])
    around = header_template(layout).around_checksum(NAME, FINGERPRINT, b"0" * 64)
    claim = b"0".rjust(64).join(around)
    tracemalloc.start()
    try:
        causes = (cause_of(claim), cause_of(claim, layout=layout))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert causes == ("layout", "format")
    assert peak < 1_000_000


def test_bytes_belong_to_their_tensor() -> None:
    """CT-3: the same bytes, cut elsewhere into tensors, have another checksum."""
    layouts = [
        ObjectLayout(
            ColdGroup.KV, [TensorSpec("a", "F32", (n,)), TensorSpec("b", "F32", (4 - n,))]
        )
        for n in (1, 2)
    ]
    bytes_ = bytes(range(16))
    one = make(layout=layouts[0], payload=[bytes_[:4], bytes_[4:]])
    two = make(layout=layouts[1], payload=[bytes_[:8], bytes_[8:]])

    assert one[-16:] == two[-16:]
    assert one[one.index(b"checksum") :][:76] != two[two.index(b"checksum") :][:76]
    assert cause_of(one, layout=layouts[1]) == "layout"


@pytest.mark.parametrize(
    "payload",
    [
        [],
        make_payload()[:-1],
        [*make_payload(), b""],
        [b"", *make_payload()[1:]],
        [*make_payload()[:-1], make_payload()[-1] + b"x"],
        make_payload()[::-1],
    ],
)
def test_a_payload_that_does_not_fit(payload) -> None:
    """CT-3: what a reader would reject is not written."""
    with pytest.raises(ValueError, match="the payload must be pieces of"):
        encode(NAME, FINGERPRINT, LAYOUT, payload)


@pytest.mark.parametrize(
    ("name", "fingerprint"),
    [
        (ObjectName(NAME.key, ColdGroup.GDN_STATE), FINGERPRINT),
        (ObjectName(ColdKey(b"short")), FINGERPRINT),
        (NAME, Fingerprint(b"short")),
    ],
)
def test_names_and_layouts_go_together(name, fingerprint) -> None:
    """CT-3: asking for a block under a sidecar's name is the caller's fault, no rejection."""
    for call in (
        lambda: encode(name, fingerprint, LAYOUT, make_payload()),
        lambda: decode(make(), name, fingerprint, LAYOUT),
    ):
        with pytest.raises(ValueError, match=r"is no place for|have 32 bytes") as caught:
            call()
        assert not isinstance(caught.value, ObjectRejectedError)


def test_a_sidecar_has_no_tokens() -> None:
    """CT-3: a sidecar that is asked for tokens is not rejected for it."""
    layout = attrs.evolve(LAYOUT, group=ColdGroup.SSM_STATE)
    name = ObjectName(NAME.key, ColdGroup.SSM_STATE)

    with pytest.raises(ValueError, match="ssm_state state has no tokens"):
        decode_block(make(name, layout=layout), name, FINGERPRINT, layout, TOKENS)


def test_an_object_is_verified_without_its_model() -> None:
    """CT-3: `verify` says what an object is once its checksum holds."""
    facts = verify_object(make(), NAME)

    assert (facts.name, facts.fingerprint, facts.layout) == (NAME, FINGERPRINT, LAYOUT)
    assert (facts.abi, facts.num_bytes) == ("neve-cold-v1", LAYOUT.max_bytes)


def test_every_byte_of_a_verified_object_counts() -> None:
    """CT-3: without the model, too, a flip anywhere is a rejection, fingerprint included."""
    data = bytearray(make())
    for index in range(len(data)):
        data[index] ^= 1
        with pytest.raises(ObjectRejectedError):
            verify_object(data, NAME)
        data[index] ^= 1


@pytest.mark.parametrize("name", [OTHER, ObjectName(NAME.key, ColdGroup.SSM_STATE)])
def test_a_misfiled_object_is_not_verified(name: ObjectName) -> None:
    """CT-3: a sound object under another's name, or another group's, is a rejection."""
    with pytest.raises(ObjectRejectedError, match="says that it is") as caught:
        verify_object(make(), name)

    assert caught.value.cause == "format"
