"""Which blocks of a prompt would come back, and why not more."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neve.coldtier.inspection.explanation import (
    REASONS,
    BlockRange,
    Prefix,
    explain,
    stored_prefix,
)
from neve.coldtier.objects.format import (
    KvGeometry,
    encode,
    encode_tokens,
    kv_layout,
    sidecar_layout,
)
from neve.coldtier.objects.keys import ColdGroup
from neve.contract.page_format import keys_and_values
from neve.contract.sidecar import SidecarLayout, SidecarPolicy, SidecarTensor
from neve.ids import Fingerprint, SaltDomain

SIZE = 4
LAYOUT = kv_layout(KvGeometry(SIZE, 1, keys_and_values(1, 2, 2), "F32"))
POLICY = SidecarPolicy("conv_state", SidecarLayout(1, [SidecarTensor("conv", (2,), "float32")]))
TOKENS = list(range(100, 118))  # four whole blocks and a half
PREFIX = Prefix(tokens=TOKENS, fingerprint=Fingerprint(b"f" * 32), block_size=SIZE)
STATEFUL = attrs.evolve(PREFIX, policy=POLICY)


@pytest.fixture
def store(make_store):
    return make_store(quota_bytes=10**6)


def write_blocks(store, prefix, num_blocks):
    chain = prefix.chain(num_blocks)
    for i, name in enumerate(chain.blocks):
        tokens = encode_tokens(prefix.tokens[i * SIZE : (i + 1) * SIZE])
        parts = encode(name, prefix.fingerprint, LAYOUT, [tokens, bytes(32), bytes(32)])
        store.write(name, parts, 1000 - i)
    return chain


def write_state(store, prefix, num_blocks):
    chain, boundary = prefix.chain(num_blocks), num_blocks * SIZE
    name = chain.sidecar(ColdGroup.CONV_STATE, prefix.tokens, boundary)
    layout = sidecar_layout(ColdGroup.CONV_STATE, POLICY.expected_at(boundary), boundary)
    store.write(name, encode(name, prefix.fingerprint, layout, [bytes(8)]), 500)
    return name


def damage(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def outcome(found):
    return found.restorable_blocks, found.first_missing, found.cause


def test_whole_hit(store):
    """CT-12: all blocks before the last token come back."""
    write_blocks(store, PREFIX, 4)
    found = explain(store, PREFIX)

    assert (found.num_tokens, found.num_blocks) == (18, 4)
    assert found.ranges == (BlockRange(0, 4, present=True),)
    assert outcome(found) == (4, None, None)
    assert found.reason is None


def test_last_token_is_always_computed(store):
    """CT-12: a block that ends with the prompt is not asked for."""
    prefix = attrs.evolve(PREFIX, tokens=TOKENS[:8])
    write_blocks(store, prefix, 2)

    assert explain(store, prefix).num_blocks == 1


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3, 4]])
def test_short_prompt(store, tokens):
    """CT-12: a prompt without a whole block misses for that reason."""
    found = explain(store, attrs.evolve(PREFIX, tokens=tokens))

    assert (found.num_blocks, found.ranges) == (0, ())
    assert outcome(found) == (0, 0, "too_short")


def test_end_of_what_was_written(store):
    """CT-12: the first block that is not there is named."""
    write_blocks(store, PREFIX, 3)
    found = explain(store, PREFIX)

    assert found.ranges == (BlockRange(0, 3, present=True), BlockRange(3, 4, present=False))
    assert outcome(found) == (3, 3, "no_continuation")


def test_hole(store, path_of):
    """CT-12: blocks behind a missing one are seen, and do not come back."""
    chain = write_blocks(store, PREFIX, 4)
    store.remove([chain.blocks[1]])
    found = explain(store, PREFIX)

    assert [blocks.present for blocks in found.ranges] == [True, False, True]
    assert outcome(found) == (1, 1, "hole")


def test_empty_store(store):
    """CT-12: where nothing is, nothing hits."""
    assert outcome(explain(store, PREFIX)) == (0, 0, "empty_store")


@pytest.mark.parametrize("salt", [0, 7])
def test_other_models_only(store, salt):
    """CT-12: a store of other models is told from a prompt that was never written."""
    write_blocks(store, attrs.evolve(PREFIX, fingerprint=Fingerprint(b"g" * 32)), 4)
    found = explain(store, attrs.evolve(PREFIX, salt=SaltDomain(salt)))

    assert outcome(found) == (0, 0, "other_models")


def test_other_prompt(store):
    """CT-12: what the model wrote may begin otherwise."""
    write_blocks(store, attrs.evolve(PREFIX, tokens=TOKENS[::-1]), 2)

    assert outcome(explain(store, PREFIX)) == (0, 0, "no_block")


def test_other_salts_are_not_looked_at(store):
    """CT-12: the same prompt under another salt says nothing about this one."""
    write_blocks(store, PREFIX, 4)
    found = explain(store, attrs.evolve(PREFIX, salt=SaltDomain(7)))

    assert found.ranges == (BlockRange(0, 4, present=False),)
    assert outcome(found) == (0, 0, "salt")


def test_damaged_block(store, path_of):
    """CT-12: a damaged block ends the prefix, and is left where it is."""
    chain = write_blocks(store, PREFIX, 4)
    damage(path_of(chain.blocks[2]))

    assert outcome(explain(store, PREFIX)) == (2, 2, "unsound")
    assert path_of(chain.blocks[2]).exists()


def test_state_is_missing(store):
    """CT-12: blocks without the state behind them are of no use."""
    write_blocks(store, STATEFUL, 4)

    assert outcome(explain(store, STATEFUL)) == (0, 0, "no_sidecar")


def test_state_shortens_the_prefix(store):
    """CT-12: the prefix ends at the deepest boundary that has its state."""
    write_blocks(store, STATEFUL, 4)
    write_state(store, STATEFUL, 1)
    write_state(store, STATEFUL, 3)

    assert outcome(explain(store, STATEFUL)) == (3, 3, "no_sidecar")


@pytest.mark.parametrize("damaged_block", [True, False])
def test_damage_falls_back_to_shallower_state(store, path_of, damaged_block):
    """CT-12: a damaged state, or a damaged block before it, leaves the boundary below."""
    chain = write_blocks(store, STATEFUL, 4)
    write_state(store, STATEFUL, 1)
    deep = write_state(store, STATEFUL, 4)
    damage(path_of(chain.blocks[2] if damaged_block else deep))

    assert outcome(explain(store, STATEFUL)) == (1, 1, "unsound")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.sets(st.integers(0, 3)))
def test_ranges_are_a_partition(make_store, tmp_path_factory, present):
    """CT-12: ranges cover all blocks in order, and every cause has a sentence."""
    store = make_store(quota_bytes=10**6, folder=tmp_path_factory.mktemp("x") / "cold")
    chain = write_blocks(store, PREFIX, 4)
    store.remove([chain.blocks[i] for i in range(4) if i not in present])
    found = explain(store, PREFIX)
    told = [blocks.present for blocks in found.ranges for _ in range(blocks.first, blocks.end)]

    assert told == [i in present for i in range(4)]
    assert found.restorable_blocks == next((i for i in range(4) if i not in present), 4)
    assert found.cause is None or found.reason == REASONS[found.cause]


def test_objects_of_a_prompt(store):
    """CT-12: blocks up to the first hole, each with its state behind it."""
    chain = write_blocks(store, STATEFUL, 4)
    state = write_state(store, STATEFUL, 2)
    write_state(store, STATEFUL, 4)
    store.remove([chain.blocks[2]])

    assert stored_prefix(store, STATEFUL) == [chain.blocks[0], chain.blocks[1], state]
    assert stored_prefix(store, PREFIX) == chain.blocks[:2]
