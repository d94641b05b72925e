from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from neve.contract.cache_spec import (
    AttentionSpec,
    CacheLayout,
    FullAttention,
    SlidingWindow,
    layer_routes,
)
from neve.ids import SHARED_DOMAIN, SaltDomain, SequenceId
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.block_group import GrowPool
from neve.kvcache.block_identity import PrefixChain
from neve.kvcache.coordinator import Coordinator
from neve.kvcache.sequence import Sequence as CacheSequence

BLOCK_SIZE = 4


@pytest.fixture
def make_layout() -> Callable[[int], CacheLayout]:
    """Return a builder of layouts with so many groups of one layer each."""

    def build(num_groups: int) -> CacheLayout:
        return layer_routes([FullAttention(1, 8 * (i + 1)) for i in range(num_groups)])

    return build


@pytest.fixture
def make_chain() -> Callable[..., PrefixChain]:
    """Return a builder of chains over all full blocks of some tokens."""

    def build(
        tokens: Sequence[int], salt: SaltDomain = SHARED_DOMAIN, block_size: int = BLOCK_SIZE
    ) -> PrefixChain:
        chain = PrefixChain(block_size, salt)
        chain.extend(tokens, len(tokens) // block_size)
        return chain

    return build


@pytest.fixture
def make_coordinator(make_layout: Callable[[int], CacheLayout]) -> Callable[..., Coordinator]:
    """Return a builder of coordinators; one number of blocks a group."""

    def build(
        *num_blocks: int, max_num_blocks: int | None = None, grow: GrowPool | None = None
    ) -> Coordinator:
        sizes = num_blocks or (16,)
        allocators = [BlockAllocator(n, BLOCK_SIZE, max_num_blocks) for n in sizes]
        return Coordinator(make_layout(len(sizes)), allocators, grow)

    return build


@pytest.fixture
def make_windowed() -> Callable[..., Coordinator]:
    """Return a builder of coordinators with a group a window; None for full attention."""

    def build(
        *windows: int | None,
        num_blocks: int | Sequence[int] = 64,
        max_slice: int = 64,
        block_size: int = BLOCK_SIZE,
    ) -> Coordinator:
        specs: list[AttentionSpec] = [
            FullAttention(1, 8 + i) if window is None else SlidingWindow(window, 1, 8 + i)
            for i, window in enumerate(windows)
        ]
        sizes = [num_blocks] * len(specs) if isinstance(num_blocks, int) else num_blocks
        allocators = [BlockAllocator(n, block_size) for n in sizes]
        return Coordinator(layer_routes(specs), allocators, max_slice=max_slice)

    return build


@pytest.fixture
def attach() -> Callable[..., CacheSequence]:
    """Return a function that opens a sequence and attaches it to its longest hit."""

    def run(
        coordinator: Coordinator,
        sequence_id: int,
        tokens: Sequence[int],
        salt: SaltDomain = SHARED_DOMAIN,
    ) -> CacheSequence:
        sequence = coordinator.open(SequenceId(sequence_id), tokens, salt=salt)
        coordinator.attach(sequence, coordinator.match_prefix(sequence))
        return sequence

    return run


@pytest.fixture
def prefill(attach: Callable[..., CacheSequence]) -> Callable[..., CacheSequence]:
    """Return a function that takes a sequence through its whole prompt and publishes it."""

    def run(
        coordinator: Coordinator,
        sequence_id: int,
        tokens: Sequence[int],
        salt: SaltDomain = SHARED_DOMAIN,
    ) -> CacheSequence:
        sequence = attach(coordinator, sequence_id, tokens, salt)
        rest = len(tokens) - sequence.cursor
        coordinator.reserve(sequence, rest)
        coordinator.commit(sequence, rest)
        coordinator.publish(sequence)
        return sequence

    return run
