from __future__ import annotations

from collections.abc import Callable

from neve.coldtier.objects.keys import ObjectName
from neve.coldtier.store.index import DEPTH_NS, FLUSH_NS, Index

MakeName = Callable[..., ObjectName]

LATER = 10 * FLUSH_NS


def order(index: Index) -> list[ObjectName]:
    return [info.name for info in index.objects()]


def test_the_least_recently_used_object_comes_first(make_name: MakeName) -> None:
    """CT-7: objects leave in the order of their last use, not of their arrival."""
    index = Index()
    a, b, c = (make_name(i) for i in range(3))
    for stamp_ns, name in enumerate((a, b, c), start=1):
        index.add(name, 10, stamp_ns * LATER)
    index.touch([a], 9 * LATER)

    assert order(index) == [b, c, a]
    assert [info.name for info in index.oldest(20)] == [b, c]
    index.check()


def test_an_object_is_older_than_its_ancestors(make_name: MakeName) -> None:
    """KV-4: a chain is used with one stamp, less a microsecond for each block of depth."""
    index = Index()
    chain = [make_name(i) for i in range(3)]
    for name in chain:
        index.add(name, 10, 5)
    index.touch(chain, LATER)

    assert order(index) == chain[::-1]
    assert [i.used_ns for i in index.objects()] == [
        LATER - 2 * DEPTH_NS,
        LATER - DEPTH_NS,
        LATER,
    ]


def test_a_stamp_never_falls(make_name: MakeName) -> None:
    """KV-4: a use in the past does not make a shared head older than its other branch."""
    index = Index()
    head, leaf = make_name(0), make_name(1)
    index.add(head, 10, LATER)
    index.add(leaf, 10, LATER - DEPTH_NS)
    index.touch([head], 7)

    assert order(index) == [leaf, head]


def test_looking_for_the_oldest_changes_nothing(make_name: MakeName) -> None:
    """CT-7: whoever asks which objects would go may ask again."""
    index = Index()
    names = [make_name(i) for i in range(5)]
    for stamp_ns, name in enumerate(names):
        index.add(name, 10, stamp_ns)

    assert index.oldest(25) == index.oldest(25)
    assert [info.name for info in index.oldest(25)] == names[:3]
    assert [info.name for info in index.oldest(11, skip={names[0]})] == names[1:3]
    index.check()


def test_too_little_is_nothing(make_name: MakeName) -> None:
    """CT-7: if all that may go has too few bytes, nothing is named."""
    index = Index()
    for stamp_ns in range(3):
        index.add(make_name(stamp_ns), 10, stamp_ns)

    assert index.oldest(31) == []
    assert index.oldest(30, until_ns=1) == [], "the third was used later"
    assert len(index.oldest(20, until_ns=1)) == 2
    assert index.oldest(0) == []


def test_a_name_that_comes_back_has_one_place(make_name: MakeName) -> None:
    """CT-7: removed entries leave nothing behind that could be evicted twice."""
    index = Index()
    name, other = make_name(0), make_name(1)
    index.add(other, 10, 1000)
    assert index.oldest(10)  # from now on there is an order to keep
    for stamp_ns in range(200):
        index.add(name, 10, stamp_ns)
        index.forget(name)
    index.add(name, 10, 500)

    assert len(index._order._heap or ()) < 100
    assert [info.name for info in index.oldest(20)] == [name, other]
    assert (len(index), index.num_bytes) == (2, 20)
    index.check()


def test_only_what_lags_far_behind_is_due(make_name: MakeName) -> None:
    """CT-7: a use is written to disk when the file's time is a minute behind, or at close."""
    index = Index()
    name = make_name(0)
    index.add(name, 10, LATER)
    index.touch([name], LATER + FLUSH_NS)

    assert index.take_stamps() == []
    index.touch([name], LATER + FLUSH_NS + 1)
    assert index.take_stamps() == [(name, LATER + FLUSH_NS + 1)]
    assert index.take_stamps() == []
    index.touch([name], LATER + FLUSH_NS + 2)
    assert index.take_stamps(everything=True) == [(name, LATER + FLUSH_NS + 2)]
    assert index.take_stamps(everything=True) == []
    index.check()


def test_ancestors_are_due_with_their_descendants(make_name: MakeName) -> None:
    """KV-4: what is written to disk keeps a chain's order, whichever block lags behind."""
    index = Index()
    head, middle, leaf = (make_name(i) for i in range(3))
    index.add(head, 10, LATER)
    index.add(middle, 10, 5)
    index.add(leaf, 10, LATER)
    index.touch([head, middle, leaf], LATER + 3 * DEPTH_NS)

    assert dict(index.take_stamps()) == {
        head: LATER + 3 * DEPTH_NS,
        middle: LATER + 2 * DEPTH_NS,
    }


def test_a_scan_keeps_uses_that_are_not_on_disk(make_name: MakeName) -> None:
    """CT-9: a scan brings in what others wrote, drops what they removed, and forgets no use."""
    index = Index()
    kept, gone, new = (make_name(i) for i in range(3))
    index.add(kept, 10, 1)
    index.add(gone, 10, 2)
    index.touch([kept], LATER)
    index.replace([(kept, 12, 1), (new, 7, 3)], 2 * LATER)

    assert order(index) == [new, kept]
    assert index.num_bytes == 19
    assert index.take_stamps() == [(kept, LATER)]
    index.check()


def test_stamps_from_the_future_come_down_in_order(make_name: MakeName) -> None:
    """CT-7: after the clock was set back, old objects do not outlive all new ones."""
    index = Index()
    past, leaf, head = (make_name(i) for i in range(3))
    index.replace([(head, 10, 9 * LATER), (past, 10, 5), (leaf, 10, 9 * LATER - 1)], LATER)

    assert order(index) == [past, leaf, head]
    assert index.newest_ns == LATER + 2
    assert [info.name for info in index.oldest(30)] == [past, leaf, head]
    assert {name for name, _ in index.take_stamps()} == {leaf, head}, "the disk is put right"
    index.check()
