from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.coldtier.objects.format import (
    KvGeometry,
    decode_block,
    encode,
    encode_tokens,
    kv_layout,
)
from neve.coldtier.objects.keys import ColdGroup, ObjectName
from neve.coldtier.store.files import StoredObject
from neve.coldtier.transfer.reader import PORTION_BLOCKS, ColdReader, read_object
from neve.coldtier.transfer.ticket import (
    MAX_READY_BYTES,
    MIN_READY_BLOCKS,
    ReadRequest,
    Ticket,
    max_ready,
)
from neve.contract.page_format import keys_and_values
from neve.errors import ObjectRejectedError
from neve.ids import ColdKey, Fingerprint

SECONDS = 20.0  # none of the tests takes that long unless something is stuck


class FakeSource:
    """Objects by name: bytes, None for what is not there, or an error of the disk."""

    def __init__(self) -> None:
        self.objects: dict[ObjectName, bytes | Exception | None] = {}
        self.read_names: list[ObjectName] = []
        self.rejected: list[ObjectName] = []
        self.busy = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def read(self, name, max_bytes):
        self.busy.set()
        assert self.go_on.wait(SECONDS)
        self.read_names.append(name)
        found = self.objects.get(name)
        if isinstance(found, Exception):
            raise found
        return None if found is None else StoredObject(found, (0, len(found)))

    def reject(self, name, identity):
        self.rejected.append(name)
        self.objects[name] = None
        return True

    def hold(self) -> None:
        """Keep the thread inside the next read."""
        self.busy.clear()
        self.go_on.clear()

    def num_reads(self, ticket: Ticket) -> int:
        wanted = {request.name for request in (*ticket.sidecars, *ticket.blocks)}
        return sum(name in wanted for name in self.read_names)


def name_of(*parts: object, group: ColdGroup = ColdGroup.KV) -> ObjectName:
    return ObjectName(ColdKey(repr(parts).encode().ljust(32, b".")), group)


def check(data: memoryview) -> list[memoryview]:
    """Stand in for a decoder: what begins with an exclamation mark says why it is unsound."""
    text: Any = bytes(data).decode()
    if text.startswith("!"):
        raise ObjectRejectedError(text[1:], "it says so")
    return [data]


def request(name: ObjectName, num_blocks: int = 0) -> ReadRequest:
    return ReadRequest(name, 100, check, num_blocks)


def texts(payloads: list[list[memoryview]]) -> list[str]:
    return [bytes(payload[0]).decode() for payload in payloads]


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


one_thread = pytest.mark.parametrize("num_threads", [1])
"""For what is told by the objects that were read: several threads read ahead of a flaw."""


@pytest.fixture(params=[1, 3])
def num_threads(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def reader(source: FakeSource, num_threads: int) -> Iterator[ColdReader]:
    reader = ColdReader(source, num_threads)
    yield reader
    source.go_on.set()
    reader.close(10)


MakeTicket = Callable[..., Ticket]


def put_ticket(source, label, contents, states=(), ready=100) -> Ticket:
    """Put a chain's objects into a source and return a ticket for them, not submitted.

    Args:
        source: Where they go.
        label: Tells the chain's names from those of others.
        contents: Of the blocks, as `FakeSource` has them.
        states: Boundaries and contents of the sidecars, deepest first.
        ready: The ticket's bound.
    """
    blocks = [name_of(label, i) for i in range(len(contents))]
    sidecars = [name_of(label, n, group=ColdGroup.GDN_STATE) for n, _ in states]
    source.objects |= dict(zip(blocks, contents, strict=True))
    source.objects |= {n: c for n, (_, c) in zip(sidecars, states, strict=True)}
    backed = [request(n, b) for n, (b, _) in zip(sidecars, states, strict=True)]
    return Ticket([request(name) for name in blocks], backed, ready)


@pytest.fixture
def submit(source: FakeSource, reader: ColdReader) -> MakeTicket:
    def submit(*args, **options) -> Ticket:
        ticket = put_ticket(source, *args, **options)
        reader.submit(ticket)
        return ticket

    return submit


def drain(reader: ColdReader, ticket: Ticket) -> list[str]:
    """Take all that a ticket will ever give."""
    taken: list[str] = []
    deadline = time.monotonic() + SECONDS
    while not reader.is_done(ticket):
        assert time.monotonic() < deadline, "it does not end"
        found = texts(reader.take(ticket, 1))
        taken += found
        if not found:
            reader.wait(0.01)
    return taken


def await_ready(reader: ColdReader, ticket: Ticket, count: int) -> None:
    deadline = time.monotonic() + SECONDS
    while ticket.num_ready < count:
        assert time.monotonic() < deadline
        time.sleep(0.0005)


# -- blocks ------------------------------------------------------------------------------


@one_thread
def test_blocks_come_in_chain_order(reader, source, submit):
    """CT-11: what was asked for comes back in order, and then the ticket is done."""
    ticket = submit("a", [b"0", b"1", b"2"])

    assert drain(reader, ticket) == ["0", "1", "2"]
    assert reader.cause(ticket) is None
    assert source.read_names == [r.name for r in ticket.blocks]


def test_take_is_bounded_and_never_waits(reader, submit):
    """CT-11: the engine thread takes what is there, as much as it wants at once."""
    ticket = submit("a", [b"0", b"1", b"2"])
    await_ready(reader, ticket, 3)

    assert texts(reader.take(ticket, 2)) == ["0", "1"]
    assert not reader.is_done(ticket)
    assert texts(reader.take(ticket, 2)) == ["2"]
    assert reader.is_done(ticket)
    assert reader.take(ticket, 2) == []


def test_nothing_is_there_before_it_was_read(reader, source, submit):
    """CT-11: a disk that does not answer makes nobody wait."""
    source.hold()
    ticket = submit("a", [b"0"])
    assert source.busy.wait(SECONDS)

    assert reader.take(ticket, 1) == []
    assert not reader.is_done(ticket)


def test_empty_ticket_is_done(reader, submit):
    """CT-11: a ticket for nothing reads nothing."""
    assert reader.is_done(submit("a", []))


def test_ready_blocks_are_bounded(reader, source, submit):
    """CT-11: the thread reads ahead by so many blocks of a restore, and no further.

    It turns to a later ticket only when the earlier one has no room.
    """
    first = submit("a", [b"%d" % i for i in range(6)], ready=2)
    second = submit("b", [b"x"])
    await_ready(reader, second, 1)
    assert source.num_reads(first) == 2

    reader.take(first, 1)
    await_ready(reader, first, 2)
    third = submit("c", [b"y"])
    await_ready(reader, third, 1)
    assert source.num_reads(first) == 3
    assert drain(reader, first) == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("block_bytes", "blocks"),
    [(1, MAX_READY_BYTES), (MAX_READY_BYTES // 4, 4), (MAX_READY_BYTES, MIN_READY_BLOCKS)],
)
def test_bound_is_in_bytes(block_bytes, blocks):
    """CT-11: large blocks wait in smaller numbers, but one can be read while one is taken."""
    assert max_ready(block_bytes) == blocks


@one_thread
@pytest.mark.parametrize("cause", ["format", "checksum", "fingerprint", "layout"])
def test_unsound_block_ends_the_restore(reader, source, submit, cause):
    """CT-3: it is removed and counted once; the blocks before it are good."""
    ticket = submit("a", [b"0", b"!" + cause.encode(), b"2"])

    assert drain(reader, ticket) == ["0"]
    assert reader.cause(ticket) == cause
    assert source.rejected == [ticket.blocks[1].name]
    assert source.num_reads(ticket) == 2


def test_missing_block_ends_the_restore(reader, source, submit):
    """CT-3: what cannot be opened is a miss, and nothing to remove."""
    ticket = submit("a", [b"0", None, b"2"])

    assert drain(reader, ticket) == ["0"]
    assert reader.cause(ticket) == "no_block"
    assert source.rejected == []


@pytest.mark.parametrize("error", [OSError(5, "I/O error"), MemoryError(), ValueError("odd")])
def test_error_of_the_store_is_a_miss(reader, source, submit, logged, error):
    """CT-7: whatever goes wrong costs the rest of a restore; the thread goes on."""
    ticket = submit("a", [b"0", error, b"2"])
    other = submit("b", [b"x"])

    assert drain(reader, ticket) == ["0"]
    assert reader.cause(ticket) == "no_block"
    assert drain(reader, other) == ["x"]
    assert [event["event"] for event in logged] == ["coldtier.read.failed"]


# -- several threads ----------------------------------------------------------------------


class SlowSource(FakeSource):
    """Each object comes when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[ObjectName, threading.Event] = {}
        self.inside = threading.Semaphore(0)

    def read(self, name, max_bytes):
        self.inside.release()
        assert self.gates[name].wait(SECONDS)
        return super().read(name, max_bytes)

    def ticket(self, contents: list[Any]) -> Ticket:
        ticket = put_ticket(self, "a", contents)
        self.gates |= {r.name: threading.Event() for r in ticket.blocks}
        return ticket


@pytest.fixture
def slow() -> Iterator[tuple[SlowSource, ColdReader]]:
    source = SlowSource()
    reader = ColdReader(source, 3)
    yield source, reader
    for gate in source.gates.values():
        gate.set()
    reader.close(SECONDS)


def test_threads_read_one_restore_together(slow):
    """CT-11: blocks of one chain are read at once, and handed out in its order all the same."""
    source, reader = slow
    ticket = source.ticket([b"0", b"1", b"2", b"3"])
    reader.submit(ticket)
    for _ in range(3):
        assert source.inside.acquire(timeout=SECONDS)
    for index in (2, 1):
        source.gates[ticket.blocks[index].name].set()
    assert source.inside.acquire(timeout=SECONDS)  # the fourth block, so two have been read

    assert reader.take(ticket, 1) == []
    for gate in source.gates.values():
        gate.set()
    assert drain(reader, ticket) == ["0", "1", "2", "3"]


def test_the_first_flaw_ends_a_restore(slow):
    """CT-3: a later block that is missed first, or sound, changes nothing."""
    source, reader = slow
    ticket = source.ticket([b"0", b"!checksum", None, b"3"])
    reader.submit(ticket)
    for index in (2, 1, 0):
        assert source.inside.acquire(timeout=SECONDS)
        source.gates[ticket.blocks[index].name].set()
        while source.num_reads(ticket) < 3 - index:
            time.sleep(0.0005)

    assert drain(reader, ticket) == ["0"]
    assert reader.cause(ticket) == "checksum"


def test_a_portion_wakes_the_engine(slow):
    """CT-11: who waits for a restore is not woken by each block."""
    source, reader = slow
    ticket = source.ticket([b"%d" % i for i in range(PORTION_BLOCKS + 2)])
    for gate in source.gates.values():
        gate.set()
    reader.submit(ticket)
    reader.wait(SECONDS)

    assert len(reader.take(ticket)) == PORTION_BLOCKS
    reader.wait(SECONDS)
    assert texts(reader.take(ticket)) == [str(PORTION_BLOCKS), str(PORTION_BLOCKS + 1)]


# -- several tickets ---------------------------------------------------------------------


def test_forgotten_ticket_frees_its_bytes(reader, source, submit):
    """SC-6: what was read for it is let go, what is being read is not kept."""
    ticket = submit("a", [b"0", b"1", b"2"], states=[(3, b"state")], ready=2)
    await_ready(reader, ticket, 2)
    reader.take(ticket, 1)
    await_ready(reader, ticket, 2)
    reader.forget(ticket)

    assert (len(ticket._ready), ticket._sidecar) == (0, None)
    assert reader.take(ticket, 5) == []
    assert drain(reader, submit("b", [b"x"])) == ["x"]


@one_thread
def test_ticket_forgotten_in_a_read_gets_nothing_more(reader, source, submit):
    """SC-6: the read that is under way ends, and its bytes go nowhere."""
    source.hold()
    ticket = submit("a", [b"0", b"1"])
    assert source.busy.wait(SECONDS)
    reader.forget(ticket)
    source.go_on.set()
    other = submit("b", [b"x", b"y"])

    assert drain(reader, other) == ["x", "y"]
    assert (reader.take(ticket, 5), source.num_reads(ticket)) == ([], 1)


def test_ticket_forgotten_in_its_sidecar_reads_no_other(reader, source, submit):
    """SC-6: of the state that would be tried next, nothing is read."""
    source.hold()
    ticket = submit("a", [b"0", b"1"], states=[(2, None), (1, b"s")])
    assert source.busy.wait(SECONDS)
    reader.forget(ticket)
    source.go_on.set()

    assert drain(reader, submit("b", [b"x"])) == ["x"]
    assert (source.num_reads(ticket), ticket._sidecar) == (1, None)


def test_sidecar_read_for_nobody_is_not_kept(reader, source, submit):
    """SC-6: state that arrives after the end is let go."""
    source.hold()
    ticket = submit("a", [b"0"], states=[(1, b"s")])
    assert source.busy.wait(SECONDS)
    reader.forget(ticket)
    source.go_on.set()
    drain(reader, submit("b", [b"x"]))

    assert (ticket._sidecar, reader.sidecar(ticket)) == (None, None)


def test_forgetting_twice_or_a_done_ticket_is_harmless(reader, submit):
    """SC-6: whoever ends a restore need not know how far it was."""
    ticket = submit("a", [b"0"])
    drain(reader, ticket)
    reader.forget(ticket)
    reader.forget(ticket)

    assert drain(reader, submit("b", [b"x"])) == ["x"]


def test_wait_returns_when_something_is_ready(reader, source, submit):
    """CT-11: an engine with nothing else to do sleeps until the disk answers."""
    source.hold()
    ticket = submit("a", [b"0"])
    assert source.busy.wait(SECONDS)
    reader.wait(0.0)
    source.go_on.set()
    reader.wait(SECONDS)
    while not reader.take(ticket, 1):
        reader.wait(SECONDS)
    reader.wait(SECONDS)  # done: there is nothing to wait for

    assert reader.is_done(ticket)


def test_close_ends_the_thread_whatever_is_left(source):
    """CT-7: nothing more is read after the end."""
    reader = ColdReader(source, 1)
    source.hold()
    tickets = [put_ticket(source, label, [b"0", b"1"]) for label in "ab"]
    for ticket in tickets:
        reader.submit(ticket)
    assert source.busy.wait(SECONDS)
    closing = threading.Thread(target=reader.close, args=(SECONDS,))
    closing.start()
    while not reader._closed:
        time.sleep(0.0005)
    source.go_on.set()
    closing.join(SECONDS)

    assert not closing.is_alive()
    assert source.read_names == [tickets[0].blocks[0].name]


# -- sidecars ----------------------------------------------------------------------------


def test_deepest_sidecar_is_read_first_and_decides_the_end(reader, source, submit):
    """SD-1: no block is read before it is known which boundary is good."""
    ticket = submit("a", [b"0", b"1", b"2"], states=[(3, b"three"), (1, b"one")])

    assert drain(reader, ticket) == ["0", "1", "2"]
    boundary, payload = reader.sidecar(ticket)
    assert (boundary, bytes(payload[0])) == (3, b"three")
    assert reader.cause(ticket) is None
    assert source.read_names[0] == ticket.sidecars[0].name
    assert ticket.sidecars[1].name not in source.read_names


@pytest.mark.parametrize(
    ("deepest", "cause", "rejected"),
    [
        (b"!checksum", "checksum", 1),
        (None, "no_sidecar", 0),
        (OSError(5, "no"), "no_sidecar", 0),
    ],
)
def test_next_sidecar_when_the_deepest_is_unsound(
    reader, source, submit, logged, deepest, cause, rejected
):
    """SD-1: the restore ends at the deepest boundary that sound state backs; it says why."""
    ticket = submit("a", [b"0", b"1", b"2"], states=[(3, deepest), (2, b"two"), (1, b"one")])

    assert drain(reader, ticket) == ["0", "1"]
    boundary, payload = reader.sidecar(ticket)
    assert (boundary, bytes(payload[0])) == (2, b"two")
    assert reader.cause(ticket) == cause
    assert source.rejected == [ticket.sidecars[0].name] * rejected


def test_no_sound_sidecar_restores_nothing(reader, source, submit):
    """SD-1: then not one block is read."""
    ticket = submit("a", [b"0", b"1"], states=[(2, b"!layout"), (1, None)])

    assert drain(reader, ticket) == []
    assert reader.sidecar(ticket) is None
    assert reader.cause(ticket) == "no_sidecar"
    assert source.read_names == [r.name for r in ticket.sidecars]


def test_sidecar_without_its_blocks_is_none(reader, submit):
    """SD-1: state is never offered for a place that the blocks do not reach."""
    ticket = submit("a", [b"0", b"!checksum", b"2"], states=[(3, b"three")])

    assert drain(reader, ticket) == ["0"]
    assert reader.sidecar(ticket) is None
    assert reader.cause(ticket) == "checksum"


def test_dense_ticket_has_no_sidecar(reader, submit):
    """SD-1: a family that keeps all in blocks gets nothing else."""
    ticket = submit("a", [b"0"])
    drain(reader, ticket)

    assert reader.sidecar(ticket) is None


# -- schedules ---------------------------------------------------------------------------

bad = st.sampled_from([None, b"!checksum", b"!format", OSError(5, "no")])
chains = st.tuples(
    st.integers(0, 5), st.dictionaries(st.integers(0, 5), bad, max_size=1), st.integers(1, 3)
)
moves = st.tuples(st.sampled_from(["submit", "take", "forget"]), st.integers(0, 3))


@attrs.define
class Restore:
    """What a ticket must give: its blocks up to the first that is unsound."""

    ticket: Ticket
    expected: list[str]
    taken: list[str] = attrs.field(factory=list)
    submitted: bool = False
    forgotten: bool = False

    @property
    def live(self) -> bool:
        return self.submitted and not self.forgotten


def make_restore(source, label, chain) -> Restore:
    length, flaws, ready = chain
    contents = [flaws.get(i, b"%d" % i) for i in range(length)]
    sound = min([i for i in flaws if i < length], default=length)
    ticket = put_ticket(source, label, contents, ready=ready)
    return Restore(ticket, [str(i) for i in range(sound)])


def make_move(reader: ColdReader, restore: Restore, move: str) -> None:
    if move == "submit" and not restore.submitted:
        restore.submitted = True
        reader.submit(restore.ticket)
    elif move == "take":
        restore.taken += texts(reader.take(restore.ticket, 1))
    elif move == "forget" and restore.live:
        restore.forgotten = True
        reader.forget(restore.ticket)


@settings(max_examples=60)
@given(
    st.lists(chains, min_size=1, max_size=4), st.lists(moves, max_size=20), st.integers(1, 3)
)
def test_any_schedule_gives_every_ticket_its_own(chain_list, schedule, num_threads):
    """CT-3, CT-11, SC-6: whoever comes, takes and goes, each gets its sound blocks, in order.

    No block is read twice, and an unsound one is rejected once.
    """
    source = FakeSource()
    reader = ColdReader(source, num_threads)
    restores = [make_restore(source, i, chain) for i, chain in enumerate(chain_list)]
    for move, i in schedule:
        restore = restores[i % len(restores)]
        make_move(reader, restore, move)
        assert len(restore.ticket._ready) <= restore.ticket.max_ready
    for restore in restores:
        make_move(reader, restore, "submit")
        if restore.live:
            restore.taken += drain(reader, restore.ticket)
    reader.close(10)

    assert set(Counter(source.read_names).values()) <= {1}
    assert set(Counter(source.rejected).values()) <= {1}
    for restore in restores:
        whole = restore.expected if restore.live else restore.expected[: len(restore.taken)]
        assert restore.taken == whole
        assert source.num_reads(restore.ticket) <= len(restore.expected) + num_threads
        if restore.live:
            short = len(restore.taken) < len(restore.ticket.blocks)
            assert (reader.cause(restore.ticket) is not None) == short


# -- real objects ------------------------------------------------------------------------

GEOMETRY = KvGeometry(2, 1, keys_and_values(1, 4, 4), "F32")
LAYOUT = kv_layout(GEOMETRY)
MODEL = Fingerprint(bytes(32))
TOKENS = (7, 8)
PAGES = [bytes([9]) * 32, bytes([8]) * 32]


def block_request(name, fingerprint=MODEL, tokens=TOKENS) -> ReadRequest:
    decoder = partial(
        decode_block, name=name, fingerprint=fingerprint, layout=LAYOUT, tokens=tokens
    )
    return ReadRequest(name, LAYOUT.max_bytes, decoder)


def flip(data: bytes, offset: int) -> bytes:
    return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]


@pytest.fixture
def store(make_store):
    return make_store(quota_bytes=10**6)


@pytest.fixture
def name(store, make_name):
    """Return the name of a sound object that the store has."""
    name = make_name("block")
    store.write(name, encode(name, MODEL, LAYOUT, [encode_tokens(TOKENS), *PAGES]), 1)
    return name


def test_sound_object_comes_back(store, name):
    """CT-3: what was written is what is read, bit by bit."""
    payload: Any = read_object(store, block_request(name))

    assert [bytes(piece) for piece in payload] == PAGES
    assert store.counters.cache().corruptions == 0


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (lambda data: flip(data, len(data) - 1), "checksum"),
        (lambda data: data[:-1], "format"),
        (lambda data: data + b"0", "format"),
        (lambda data: b"", "format"),
        (lambda data: bytes(len(data)), "format"),
    ],
    ids=["flipped", "truncated", "longer", "empty", "zeros"],
)
def test_damaged_object_is_pruned_and_counted_once(store, name, path_of, damage, cause):
    """CT-3: a malformed object is a miss that removes it and counts one corruption."""
    path_of(name).write_bytes(damage(path_of(name).read_bytes()))

    assert read_object(store, block_request(name)) == cause
    assert not path_of(name).exists()
    assert not store.contains(name)
    assert read_object(store, block_request(name)) == "no_block"
    assert store.counters.cache().corruptions == 1


def test_object_of_other_tokens_is_rejected(store, name):
    """CT-3: a sound object of other tokens than those asked for is never wrong KV."""
    assert read_object(store, block_request(name, tokens=(7, 9))) == "layout"
    assert store.counters.cache().corruptions == 1


def test_object_of_another_model_is_rejected(store, name):
    """CT-4: a sound object of another model is never wrong KV."""
    other = Fingerprint(bytes([1]) * 32)

    assert read_object(store, block_request(name, fingerprint=other)) == "fingerprint"
    assert not store.contains(name)


def test_object_under_another_name_is_rejected(store, name, make_name, path_of):
    """CT-3: a file that was moved to another name is rejected there; the first one stays."""
    other = make_name("other")
    path_of(other).parent.mkdir(exist_ok=True)
    path_of(other).write_bytes(path_of(name).read_bytes())

    assert read_object(store, block_request(other)) == "format"
    assert not path_of(other).exists()
    assert path_of(name).exists()


def test_object_that_is_gone_is_a_miss_only(store, name, path_of):
    """CT-3: what cannot be opened is no corruption."""
    path_of(name).unlink()

    assert read_object(store, block_request(name)) == "no_block"
    assert not store.contains(name)
    assert store.counters.cache().corruptions == 0
