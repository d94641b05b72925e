from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.errors import CacheMisuseError, MemoryBudgetError
from neve.kvcache.memory import MIB, MemoryCoordinator


def test_the_account_adds_up() -> None:
    """KV-7: the total is what is registered, after updates and releases."""
    memory = MemoryCoordinator()
    memory.register("weights", 100)
    memory.register("pool", 50)
    memory.update("pool", 80)

    assert memory.total == 180
    memory.release("weights")
    assert memory.total == 80


def test_the_cap_holds() -> None:
    """KV-7: what would pass the cap is refused, names who holds what, and changes nothing."""
    memory = MemoryCoordinator(10 * MIB)
    memory.register("weights", 7 * MIB)
    memory.register("pool", 1 * MIB)

    with pytest.raises(
        MemoryBudgetError, match="draft asks for 3 MiB of a limit of 10 MiB"
    ) as e:
        memory.register("draft", 3 * MIB)
    assert "weights 7 MiB, pool 1 MiB" in str(e.value)
    with pytest.raises(MemoryBudgetError, match="pool asks for 4 MiB"):
        memory.update("pool", 4 * MIB)
    assert memory.total == 8 * MIB
    memory.update("pool", 3 * MIB)
    assert memory.total == 10 * MIB


def test_shrinking_is_always_allowed() -> None:
    """KV-7: a holder may give back even while the cap is passed."""
    memory = MemoryCoordinator()
    memory.register("pool", 100)
    memory.limit_bytes = 10
    memory.update("pool", 50)

    assert memory.total == 50


def test_a_name_is_registered_once() -> None:
    """KV-7: registering twice, and changing or striking off a stranger, are errors."""
    memory = MemoryCoordinator()
    memory.register("pool", 0)

    with pytest.raises(CacheMisuseError, match="update it"):
        memory.register("pool", 1)
    with pytest.raises(CacheMisuseError, match="not registered"):
        memory.update("weights", 1)
    with pytest.raises(CacheMisuseError, match="not registered"):
        memory.release("weights")
    memory.release("pool")


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 60), min_size=1),
    st.integers(0, 100),
)
def test_the_total_never_passes_the_cap(sizes: dict[str, int], limit: int) -> None:
    """KV-7: whatever is registered in whatever order, the cap holds."""
    memory = MemoryCoordinator(limit)
    held = 0
    for name, size in sizes.items():
        try:
            memory.register(name, size)
        except MemoryBudgetError:
            assert held + size > limit
        else:
            held += size

    assert memory.total == held <= limit


def test_room_is_what_the_others_leave() -> None:
    """KV-7: a holder may hold all that the cap leaves beside the others, its own included."""
    memory = MemoryCoordinator(100)
    memory.register("weights", 60)
    memory.register("pool", 30)

    assert memory.room("pool") == 40
    assert memory.room("states") == 10
    assert memory.held() == {"weights": 60, "pool": 30}
    memory.limit_bytes = 50
    assert memory.room("pool") == 0
    assert MemoryCoordinator().room("pool") is None
