from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator

import attrs
import pytest

from neve.coldtier.objects.format import KvGeometry, kv_layout
from neve.coldtier.objects.keys import ColdGroup, ObjectName
from neve.coldtier.stats import Counters
from neve.coldtier.store.store import ColdStore, StoreLimits, WriteOutcome
from neve.coldtier.tier import ColdTier
from neve.coldtier.transfer.capture import CaptureBudget, StateOffer, StopReason
from neve.coldtier.transfer.ticket import ReadRequest, Ticket
from neve.coldtier.transfer.walk import RestorePlan
from neve.contract.page_format import keys_and_values
from neve.contract.sidecar import SidecarLayout, SidecarPolicy, SidecarTensor
from neve.ids import SHARED_DOMAIN, ColdKey, Fingerprint, SaltDomain

SECONDS = 20.0  # none of the tests takes that long unless something is stuck
SIZE = 4
GEOMETRY = KvGeometry(SIZE, 2, keys_and_values(1, 8, 4), "F32")
PAGE_BYTES = (SIZE * 8 * 4, SIZE * 4 * 4) * 2
BLOCK_BYTES = kv_layout(GEOMETRY).payload_bytes
FILE_BYTES = kv_layout(GEOMETRY).max_bytes
MODEL = Fingerprint(bytes(range(32)))
TOKENS = list(range(100, 131))
LIMIT = (len(TOKENS) - 1) // SIZE
STATE = SidecarLayout(2, [SidecarTensor("conv", (2, 8), "bfloat16")])
POLICY = SidecarPolicy("conv_state", STATE)


def pages_of(tokens, end) -> list[bytes]:
    """Return what a model computes for the block that ends at `end`, given all before."""
    seed = hashlib.sha256(repr(list(tokens[:end])).encode()).digest()
    return [bytes([i]) + (seed * (size // 32 + 1))[1:size] for i, size in enumerate(PAGE_BYTES)]


def state_of(tokens, end) -> list[bytes]:
    seed = hashlib.sha256(b"state" + repr(list(tokens[:end])).encode()).digest()
    return [bytes([layer]) + seed[1:] for layer in range(2)]


@attrs.frozen(eq=False)
class Memory:
    """A chain's blocks in memory; the first `held` of them."""

    tokens: list[int]
    held: int = 10**6

    def read(self, first, count):
        last = min(first + count, self.held)
        return [
            [memoryview(p) for p in pages_of(self.tokens, (i + 1) * SIZE)]
            for i in range(first, last)
        ]


@attrs.frozen
class Restored:
    """What came back.

    Attributes:
        blocks: Bytes of each block.
        sidecar: Its boundary in blocks and its bytes, None without one.
        cause: Why not more.
        plan: What was planned.
    """

    blocks: list[list[bytes]]
    sidecar: tuple[int, list[bytes]] | None
    cause: str | None
    plan: RestorePlan


MakeTier = Callable[..., ColdTier]


def open_tier(root, policy=None, blocks=100, seconds=60.0, quota_bytes=10**7) -> ColdTier:
    store = ColdStore.open(root, StoreLimits(quota_bytes, min_free_bytes=0), Counters())
    return ColdTier(store, GEOMETRY, CaptureBudget(blocks, seconds), policy=policy)


@pytest.fixture
def make_tier(root) -> Iterator[MakeTier]:
    """Return a builder of tiers, all on one folder; each stands for another process."""
    tiers: list[ColdTier] = []

    def make(fingerprint: Fingerprint | None = MODEL, **options):
        tiers.append(open_tier(root, **options))
        if fingerprint is not None:
            tiers[-1].identify(fingerprint)
        return tiers[-1]

    yield make
    for tier in tiers:
        tier.close(SECONDS)


def capture(tier, tokens=TOKENS, num_blocks=LIMIT, salt=SHARED_DOMAIN, held=10**6):
    """Write a turn's blocks, and wait for the disk.

    Returns:
        The walk and the chain.
    """
    chain = tier.chain(salt)
    walk = tier.capture(chain, tokens, num_blocks, Memory(tokens, held))
    while walk.stop is None:
        tier.advance(walk, 100)
        if not tier._writer.free_slots:
            tier.drain(SECONDS)
    tier.drain(SECONDS)
    return walk, chain


def offer(tier, walk, chain, num_blocks, tokens=TOKENS, layout=STATE):
    """Write the state at a boundary, and wait for the disk."""
    payload = [memoryview(piece) for piece in state_of(tokens, num_blocks * SIZE)]
    state = StateOffer(num_blocks, layout, lambda: payload)
    outcome = tier.offer_state(chain, tokens, walk, state, time.monotonic() + SECONDS)
    tier.drain(SECONDS)
    return outcome


def restore(tier, tokens=TOKENS, first=0, limit=LIMIT, salt=SHARED_DOMAIN) -> Restored:
    """Read along a chain, as the engine does, to the end."""
    chain = tier.chain(salt)
    plan = tier.plan(chain, tokens, first, limit, salt)
    if not plan.num_blocks:
        return Restored([], None, plan.cause, plan)
    ticket, blocks = tier.begin(plan, chain, tokens), []
    deadline = time.monotonic() + SECONDS
    while not tier.reader.is_done(ticket):
        assert time.monotonic() < deadline, "it does not end"
        found = tier.reader.take(ticket, 2)
        blocks += [[bytes(page) for page in block] for block in found]
        if not found:
            tier.reader.wait(0.01)
    sidecar = tier.reader.sidecar(ticket)
    cause = tier.reader.cause(ticket) or plan.cause
    if sidecar is not None:
        sidecar = sidecar[0], [bytes(piece) for piece in sidecar[1]]
    tier.reader.forget(ticket)
    tier.count_restored(len(blocks))
    return Restored(blocks, sidecar, cause, plan)


def blocks_of(tokens, first, end) -> list[list[bytes]]:
    return [[b"".join(pages_of(tokens, (i + 1) * SIZE))] for i in range(first, end)]


def flip(path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


# -- blocks ------------------------------------------------------------------------------


def test_a_fresh_process_restores_what_another_wrote(make_tier):
    """CT-1: every block comes back bit by bit, and the counts say so."""
    writer = make_tier()
    walk, _ = capture(writer)
    assert (walk.stop, walk.written) == (StopReason.COMPLETE, LIMIT)
    written = writer.stats()[0]
    assert (written.enqueued, written.bytes_written) == (LIMIT, LIMIT * FILE_BYTES)

    reader = make_tier()
    found = restore(reader)
    stats = reader.stats()[0]
    assert found.blocks == blocks_of(TOKENS, 0, LIMIT)
    assert found.cause is None
    assert (stats.hits, stats.misses, stats.corruptions) == (LIMIT, 0, 0)
    assert stats.bytes_restored == LIMIT * BLOCK_BYTES
    assert (stats.enabled, stats.quota_bytes) == (True, 10**7)


def test_restore_goes_on_where_memory_ends(make_tier):
    """CT-1: only what memory does not hold is read."""
    capture(make_tier())
    found = restore(make_tier(), first=3)

    assert found.blocks == blocks_of(TOKENS, 3, LIMIT)


def test_another_prompt_shares_the_common_blocks_only(make_tier):
    """CT-1: the restore ends where the prompts part."""
    capture(make_tier())
    tokens = [*TOKENS[:14], *range(900, 917)]
    found = restore(make_tier(), tokens)

    assert found.blocks == blocks_of(TOKENS, 0, 3)
    assert found.cause == "no_block"


def test_another_fingerprint_finds_nothing(make_tier):
    """CT-4: another model has other names; its objects are not opened, let alone removed."""
    capture(make_tier())
    other = make_tier(fingerprint=Fingerprint(bytes(32)))

    assert restore(other).blocks == []
    stats = other.stats()[0]
    assert (stats.hits, stats.misses, stats.corruptions) == (0, 1, 0)
    assert len(restore(make_tier()).blocks) == LIMIT


def test_another_salt_finds_nothing(make_tier):
    """KV-9: a domain sees its own objects, and no others."""
    capture(make_tier(), salt=SaltDomain(5))
    tier = make_tier()

    assert restore(tier).cause == "no_block"
    assert restore(tier, salt=SaltDomain(6)).cause == "salt"
    assert len(restore(tier, salt=SaltDomain(5)).blocks) == LIMIT
    assert tier.stats()[0].misses == 2


def test_deleted_object_ends_the_restore(make_tier, path_of):
    """CT-3: exactly the blocks before it come back."""
    _, chain = capture(make_tier())
    tier = make_tier()
    path_of(chain.blocks[4]).unlink()
    found = restore(tier)

    assert found.blocks == blocks_of(TOKENS, 0, 4)
    assert (found.plan.end, found.cause) == (LIMIT, "no_block")
    assert (tier.stats()[0].hits, tier.stats()[0].corruptions) == (4, 0)
    assert restore(tier).plan.end == 4


def test_flipped_bit_ends_the_restore(make_tier, path_of):
    """CT-3: exactly the blocks before it come back; it is removed and counted once."""
    writer = make_tier()
    _, chain = capture(writer)
    flip(path_of(chain.blocks[2]))
    tier = make_tier()

    for _ in range(2):
        assert restore(tier).blocks == blocks_of(TOKENS, 0, 2)
    stats = tier.stats()[0]
    assert (stats.hits, stats.corruptions) == (4, 1)
    assert not path_of(chain.blocks[2]).exists()


def test_next_turn_writes_the_hole_again(make_tier, path_of):
    """CT-6: what was lost is written by the next turn that computes it, and nothing else."""
    _, chain = capture(make_tier())
    path_of(chain.blocks[2]).unlink()
    tier = make_tier()
    walk, _ = capture(tier)

    assert (walk.written, walk.already) == (1, LIMIT - 1)
    assert restore(tier).blocks == blocks_of(TOKENS, 0, LIMIT)


def test_blocks_of_a_running_process_are_found(make_tier):
    """CT-9: two processes share a store: what one writes, the other restores."""
    writer, reader = make_tier(), make_tier()
    capture(writer)

    assert restore(reader).blocks == blocks_of(TOKENS, 0, LIMIT)


def test_nothing_happens_without_a_fingerprint(make_tier):
    """CT-4: as long as it is not known which model it is, nothing has a name."""
    tier = make_tier(fingerprint=None)
    assert tier.chain(SHARED_DOMAIN) is None
    tier.identify(MODEL)

    assert tier.fingerprint == MODEL
    assert tier.chain(SHARED_DOMAIN) is not None


def test_nothing_wanted_counts_nothing(make_tier):
    """CT-1: a prompt that memory holds is no miss."""
    tier = make_tier()
    restore(tier, first=LIMIT)

    assert tier.stats()[0].misses == 0


# -- causes ------------------------------------------------------------------------------


def test_end_of_a_budget_is_the_cause_of_the_next_miss(make_tier):
    """CT-6: a chain that was cut by the budget says so where it ends."""
    tier = make_tier(blocks=3)
    walk, _ = capture(tier)

    assert walk.stop is StopReason.BUDGET
    assert restore(tier).cause == "budget"
    capture(tier)
    assert restore(tier).plan.end == 6
    capture(tier)
    assert restore(tier).cause is None


def test_deadline_is_a_budget_too(make_tier):
    """CT-6: what the time did not suffice for is reported as the budget's end."""
    tier = make_tier(seconds=0.0)
    walk, _ = capture(tier)

    assert walk.stop is StopReason.DEADLINE
    assert restore(tier).cause == "budget"


def test_end_is_forgotten_once_the_chain_goes_on(make_tier, path_of):
    """CT-6: a block that was written and then lost is missing for another reason."""
    tier = make_tier(blocks=3)
    _, chain = capture(tier)
    capture(tier)
    path_of(chain.blocks[3]).unlink()
    tier._store.read(chain.blocks[3], 1)  # whoever fails to open it forgets it

    assert restore(tier).cause == "no_block"


def test_quota_is_the_cause_of_the_next_miss(make_tier):
    """CT-7: what the store refused is said to be missing for that; the walk has ended."""
    tier = make_tier(quota_bytes=FILE_BYTES - 1)
    walk = tier.capture(chain := tier.chain(SHARED_DOMAIN), TOKENS, LIMIT, Memory(TOKENS))
    tier.advance(walk, 2)
    assert not tier.drain(SECONDS)
    tier.advance(walk, 2)

    assert (walk.stop, walk.written) == (StopReason.REFUSED, 2)
    assert tier._writer.last_refusal is WriteOutcome.QUOTA
    assert not tier._store.contains(chain.blocks[0])
    assert restore(tier).cause == "quota"
    stats = tier.stats()[0]
    assert (stats.enqueued, stats.write_errors, stats.bytes_written) == (2, 2, 0)


def test_evicted_block_has_no_cause_of_its_own(make_tier):
    """CT-6: what memory lost before it was written is simply not there."""
    tier = make_tier()
    walk, _ = capture(tier, held=2)

    assert (walk.stop, walk.reach) == (StopReason.EVICTED, 2)
    assert restore(tier).cause == "no_block"


def test_slow_disk_is_declined_and_tried_again(make_tier):
    """CT-1: a restore that would take longer is declined before it reads; that fades."""
    tier = make_tier()
    capture(tier)
    tier.cost.restore.record(1, 10**6)
    tier.cost.prefill.record(1, 10**5)
    found = restore(tier)
    assert (found.blocks, found.cause) == ([], "declined")
    stats = tier.stats()[0]
    assert (stats.restore_declines, stats.hits, stats.misses) == (1, 0, 0)

    causes = [restore(tier).cause for _ in range(100)]
    assert causes[0] == "declined"
    assert causes[-1] is None


# -- sidecars ----------------------------------------------------------------------------


def test_state_comes_back_with_its_blocks(make_tier):
    """SD-1, SD-7: the state is offered behind the chain and restored at its boundary."""
    writer = make_tier(policy=POLICY)
    walk, chain = capture(writer)
    assert offer(writer, walk, chain, 5) == "enqueued"
    tier = make_tier(policy=POLICY)
    found = restore(tier)

    assert found.blocks == blocks_of(TOKENS, 0, 5)
    assert found.sidecar == (5, state_of(TOKENS, 5 * SIZE))
    assert found.cause == "no_sidecar"
    assert tier.stats()[0].hits == 5


def test_boundary_counts_from_the_first_block_that_is_read(make_tier):
    """SD-1: a restore behind a hit in memory ends at the same place."""
    writer = make_tier(policy=POLICY)
    walk, chain = capture(writer)
    offer(writer, walk, chain, 5)
    found = restore(make_tier(policy=POLICY), first=2)

    assert found.blocks == blocks_of(TOKENS, 2, 5)
    assert found.sidecar == (3, state_of(TOKENS, 5 * SIZE))


@pytest.mark.parametrize(("damage", "corruptions"), [(flip, 1), (lambda p: p.unlink(), 0)])
def test_next_sound_boundary_is_restored(make_tier, path_of, damage, corruptions):
    """SD-1: state that is unsound or gone leaves the next deepest boundary."""
    writer = make_tier(policy=POLICY)
    walk, chain = capture(writer)
    for boundary in (2, 4, 6):
        offer(writer, walk, chain, boundary)
    tier = make_tier(policy=POLICY)
    damage(path_of(chain.sidecar(ColdGroup.CONV_STATE, TOKENS, 6 * SIZE)))
    found = restore(tier)

    assert found.blocks == blocks_of(TOKENS, 0, 4)
    assert found.sidecar == (4, state_of(TOKENS, 4 * SIZE))
    assert tier.stats()[0].corruptions == corruptions
    assert restore(tier).plan.end == 4


def test_chain_without_sound_state_restores_nothing(make_tier, path_of):
    """SD-1: blocks without the state that belongs to them are of no use."""
    writer = make_tier(policy=POLICY)
    walk, chain = capture(writer)
    offer(writer, walk, chain, 3)
    flip(path_of(chain.sidecar(ColdGroup.CONV_STATE, TOKENS, 3 * SIZE)))
    tier = make_tier(policy=POLICY)
    found = restore(tier)

    assert (found.blocks, found.sidecar, found.cause) == ([], None, "checksum")
    assert (tier.stats()[0].hits, tier.stats()[0].bytes_restored) == (0, 0)


def test_chain_without_state_is_declined(make_tier):
    """SD-1: a chain that no state backs is refused before anything is read."""
    capture(make_tier())
    tier = make_tier(policy=POLICY)
    found = restore(tier)

    assert (found.blocks, found.cause) == ([], "no_sidecar")
    stats = tier.stats()[0]
    assert (stats.restore_declines, stats.misses) == (1, 0)


def test_state_short_of_its_blocks_is_not_offered(make_tier, path_of):
    """SD-1: a block that is lost before the boundary takes the state with it."""
    writer = make_tier(policy=POLICY)
    walk, chain = capture(writer)
    offer(writer, walk, chain, 5)
    flip(path_of(chain.blocks[3]))
    found = restore(make_tier(policy=POLICY))

    assert (found.blocks, found.sidecar) == (blocks_of(TOKENS, 0, 3), None)
    assert found.cause == "checksum"


def test_state_of_another_layout_is_rejected(make_tier):
    """SD-2: state is installed in exactly the expected layout or not at all."""
    writer = make_tier(policy=POLICY)
    walk, chain = capture(writer)
    offer(writer, walk, chain, 3)
    wide = SidecarLayout(2, [SidecarTensor("conv", (4, 4), "bfloat16")])
    tier = make_tier(policy=SidecarPolicy("conv_state", wide))
    found = restore(tier)

    assert (found.blocks, found.cause) == ([], "layout")
    assert tier.stats()[0].corruptions == 1


def test_scaled_layout_is_the_boundarys(make_tier):
    """SD-2: state of a window has as many rows as the boundary, up to the window."""
    window = SidecarLayout(1, [SidecarTensor("keys", (16, 2), "float32")])
    policy = SidecarPolicy("sliding_window", window, scaled_axis=0)
    tier = make_tier(policy=policy)
    walk, chain = capture(tier)
    rows = [memoryview(bytes(8 * 2 * 4))]
    outcomes = [
        tier.offer_state(chain, TOKENS, walk, StateOffer(2, layout, lambda: rows), SECONDS)
        for layout in (window, policy.expected_at(8))
    ]
    tier.drain(SECONDS)

    assert outcomes == ["wrong_layout", "enqueued"]
    assert restore(tier).sidecar == (2, [bytes(64)])


def test_every_end_of_an_offer_is_counted(make_tier):
    """SD-7: what reached the capture of a sidecar is skipped, known, enqueued or dropped."""
    tier = make_tier(policy=POLICY)
    walk, chain = capture(tier)
    empty, _ = capture(tier, tokens=[7] * len(TOKENS), held=0)
    wrong = SidecarLayout(2, [SidecarTensor("conv", (2, 8), "float16")])
    outcomes = [
        offer(tier, empty, chain, 1),
        tier.offer_state(chain, TOKENS, walk, None, 0.0),
        offer(tier, walk, chain, 4, layout=wrong),
        offer(tier, walk, chain, 4),
        offer(tier, walk, chain, 4),
    ]
    tier._writer.close(SECONDS)
    outcomes.append(offer(tier, walk, chain, 2))

    assert outcomes == [
        "chain_empty",
        "no_boundary",
        "wrong_layout",
        "enqueued",
        "already_persisted",
        "dropped",
    ]
    cache, sidecar = tier.stats()
    assert sidecar.capture_reached == 6
    assert (sidecar.chain_empty, sidecar.boundary_skips) == (1, 2)
    assert sidecar.already_persisted == 1
    assert (sidecar.enqueued, sidecar.queue_drops) == (1, 1)
    assert (cache.enqueued, cache.queue_drops) == (LIMIT + 1, 1)


def test_state_beyond_the_chain_is_not_written(make_tier):
    """SD-7: state is anchored where the persisted chain reaches, or nowhere."""
    tier = make_tier(policy=POLICY, blocks=3)
    walk, chain = capture(tier)

    assert offer(tier, walk, chain, 4) == "no_boundary"
    assert offer(tier, walk, chain, 3) == "enqueued"
    assert tier.stats()[1].boundary_skips == 1


def test_state_has_the_salt_of_its_chain(make_tier):
    """SD-7, KV-9: state under one salt backs no chain under another."""
    writer = make_tier(policy=POLICY)
    walk, chain = capture(writer, salt=SaltDomain(5))
    offer(writer, walk, chain, 4)
    capture(writer, salt=SaltDomain(6))
    tier = make_tier(policy=POLICY)

    assert restore(tier, salt=SaltDomain(5)).sidecar is not None
    assert restore(tier, salt=SaltDomain(6)).cause == "no_sidecar"


# -- the order of eviction ---------------------------------------------------------------


def eviction_order(tier, chain, boundary) -> list[str]:
    state = chain.sidecar(ColdGroup.CONV_STATE, TOKENS, boundary * SIZE)
    labels = {name: str(i) for i, name in enumerate(chain.blocks)} | {state: "state"}
    return [labels.get(info.name, "?") for info in tier._store.objects()]


def test_state_is_evicted_just_before_its_block(make_tier):
    """CT-7: leaves go first; state goes before the block that it belongs to."""
    tier = make_tier(policy=POLICY)
    walk, chain = capture(tier, num_blocks=4)
    offer(tier, walk, chain, 3)

    assert eviction_order(tier, chain, 3) == ["3", "state", "2", "1", "0"]


@pytest.mark.parametrize("use", ["restore", "capture"])
def test_use_of_a_chain_is_use_of_its_state(make_tier, use):
    """CT-7: a chain that is used stays together: its blocks and the state that backs them."""
    tier = make_tier(policy=POLICY)
    walk, chain = capture(tier, num_blocks=3)
    offer(tier, walk, chain, 3)
    capture(tier, tokens=[7] * 8, num_blocks=2)
    if use == "restore":
        restore(tier, limit=3)
    else:
        walk, _ = capture(tier, num_blocks=3)
        assert offer(tier, walk, chain, 3) == "already_persisted"

    assert eviction_order(tier, chain, 3) == ["?", "?", "state", "2", "1", "0"]


# -- the end -----------------------------------------------------------------------------


def test_close_lands_what_was_offered(root):
    """CT-5: a tier that is closed has written what it took."""
    tier = open_tier(root)
    tier.identify(MODEL)
    chain = tier.chain(SHARED_DOMAIN)
    assert chain is not None
    walk = tier.capture(chain, TOKENS, 4, Memory(TOKENS))
    tier.advance(walk, 4)
    assert tier.close(SECONDS)

    tier = open_tier(root)
    assert {info.name for info in tier._store.objects()} == set(chain.blocks)
    assert tier.close(SECONDS)


def test_a_thread_that_hangs_keeps_the_store_open(tmp_path, monkeypatch):
    """CT-7: closing gives up on a disk that does not answer, and on its descriptors."""
    release, reading = threading.Event(), threading.Event()
    tier = open_tier(tmp_path / "store")
    closed: list[bool] = []
    monkeypatch.setattr(ColdStore, "close", lambda _: closed.append(True))

    def hang(*_: object) -> None:
        reading.set()
        release.wait(10)

    monkeypatch.setattr(ColdStore, "read", hang)
    request = ReadRequest(ObjectName(ColdKey(bytes(32))), 1, lambda data: [data])
    tier.reader.submit(Ticket([request]))
    assert reading.wait(10)
    tier.close(0.05)
    release.set()

    assert closed == []
