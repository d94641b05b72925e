from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.errors import SaltTooLongError
from neve.ids import SHARED_DOMAIN, BlockHash, SaltDomain
from neve.kvcache import block_identity
from neve.kvcache.block_identity import (
    ROOT_HASH,
    BlockIdentity,
    PrefixChain,
    block_hash,
    salt_domain,
)

words = st.lists(st.integers(0, 3), max_size=4).map(tuple)
identities = st.builds(
    BlockIdentity,
    parent=st.integers(0, 1).map(lambda i: BlockHash(bytes([i]) * 16)),
    tokens=words,
    extra_keys=words,
    salt=st.integers(0, 3).map(SaltDomain),
    index=st.just(0),
)


def test_salt_domain_is_a_sha256() -> None:
    """KV-9: a salt's domain is the first 64 bits of its SHA-256."""
    digest = hashlib.sha256(b"tenant").digest()

    assert salt_domain("tenant") == int.from_bytes(digest[:8], "little")


@pytest.mark.parametrize("salt", ["", "\x00", "tenant", "é", "\ud800"])
def test_every_string_is_a_domain_of_its_own(salt: str) -> None:
    """KV-9: only an omitted salt is the shared domain; the empty string is a salt."""
    assert salt_domain(salt) != salt_domain(None) == SHARED_DOMAIN
    assert salt_domain(salt) != salt_domain(salt + "x")


def test_a_zero_digest_is_not_the_shared_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    """KV-9: no string can fall into the shared domain, whatever its digest."""

    class ZeroDigest:
        def digest(self) -> bytes:
            return bytes(32)

    def zero_hash(_: bytes) -> ZeroDigest:
        return ZeroDigest()

    monkeypatch.setattr(block_identity.hashlib, "sha256", zero_hash)

    assert salt_domain("tenant") == 1


def test_a_salt_has_at_most_256_bytes() -> None:
    """KV-9: the bound counts UTF-8 bytes, not characters."""
    salt_domain("é" * 128)

    with pytest.raises(SaltTooLongError, match="258 UTF-8 bytes, at most 256"):
        salt_domain("é" * 129)


@given(identities, identities)
def test_different_identities_hash_differently(a: BlockIdentity, b: BlockIdentity) -> None:
    """KV-3: the framing is unambiguous: no token passes for an extra key or a count."""
    assert (block_hash(a) == block_hash(b)) == (a == b)


def test_counts_stand_before_what_they_count() -> None:
    """KV-3: two tokens and one extra key of the same bytes are not the same block."""
    tokens = BlockIdentity(ROOT_HASH, (1, 0), (), SHARED_DOMAIN, 0)
    keys = BlockIdentity(ROOT_HASH, (), (1,), SHARED_DOMAIN, 0)

    assert block_hash(tokens) != block_hash(keys)


def test_salt_enters_the_first_block_only() -> None:
    """KV-9: behind block 0 the parent carries the salt; the record keeps it all the same."""

    def make(index: int, salt: int) -> BlockIdentity:
        return BlockIdentity(ROOT_HASH, (1, 2), (), SaltDomain(salt), index)

    assert block_hash(make(0, 1)) != block_hash(make(0, 2))
    assert block_hash(make(1, 1)) == block_hash(make(1, 2))
    assert make(1, 1) != make(1, 2)


def test_salt_isolates_the_whole_chain(make_chain: Callable[..., PrefixChain]) -> None:
    """KV-9: no block of one domain's chain is a block of another's."""
    ours, theirs = make_chain(range(12), SaltDomain(1)), make_chain(range(12), SaltDomain(2))

    assert not set(ours.hashes) & set(theirs.hashes)


def test_order_of_extra_keys_matters() -> None:
    """KV-3: extra keys are ordered, and belong to one block each; behind the last are none."""
    chains = [
        PrefixChain(2, SHARED_DOMAIN, keys) for keys in [((1, 2),), ((2, 1),), ((), (1, 2))]
    ]
    for chain in chains:
        chain.extend(range(6), 3)

    assert len({chain.hashes[0] for chain in chains}) == 3
    assert [i.extra_keys for i in chains[2].identities] == [(), (1, 2), ()]


def test_a_chain_names_all_that_came_before() -> None:
    """KV-3: equal blocks behind different heads differ, and so do equal blocks in a row."""
    chain, other = PrefixChain(2), PrefixChain(2)
    chain.extend([7, 7, 7, 7], 2)
    other.extend([8, 8, 7, 7], 2)

    assert len({*chain.hashes, *other.hashes}) == 4
    assert chain.identities[1].parent == chain.hashes[0]
    assert chain.identities[0].parent == ROOT_HASH


def test_a_block_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """PK-2: extending a chain hashes the new blocks and no other."""
    seen: list[int] = []

    def counted(identity: BlockIdentity) -> BlockHash:
        seen.append(identity.index)
        return block_hash(identity)

    monkeypatch.setattr(block_identity, "block_hash", counted)
    chain = PrefixChain(2)
    chain.extend(range(7), 2)
    chain.extend(range(7), 3)
    chain.extend(range(7), 1)

    assert seen == [0, 1, 2]
    assert len(chain.hashes) == len(chain.identities) == 3


@given(st.lists(st.integers(0, 2**32 - 1), max_size=20), st.integers(1, 4), st.data())
def test_a_chain_does_not_depend_on_its_steps(
    tokens: list[int], size: int, data: st.DataObject
) -> None:
    """KV-3: a chain made in several steps equals the one made at once."""
    total = len(tokens) // size
    at_once, in_steps = PrefixChain(size), PrefixChain(size)
    at_once.extend(tokens, total)
    for step in sorted(data.draw(st.lists(st.integers(0, total), max_size=4))):
        in_steps.extend(tokens[: step * size], step)
    in_steps.extend(tokens, total)

    assert in_steps.hashes == at_once.hashes
    assert in_steps.identities == at_once.identities


@pytest.mark.parametrize(
    ("tokens", "keys"), [([-1, 0], ()), ([2**32, 0], ()), ([0, 0], ((2**64,),))]
)
def test_words_out_of_range_are_refused(
    tokens: list[int], keys: tuple[tuple[int, ...], ...]
) -> None:
    """KV-8: a token or key that does not fit is an error, and the chain stays as it was."""
    chain = PrefixChain(2, SHARED_DOMAIN, keys)

    with pytest.raises(ValueError, match="32 bits"):
        chain.extend(tokens, 1)
    assert (chain.hashes, chain.identities) == ([], [])
