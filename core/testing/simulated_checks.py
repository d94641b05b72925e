"""What must hold between two steps of a simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..contract.prompt import Prompt
from ..ids import SaltDomain
from ..kvcache.block_identity import PrefixChain
from ..kvcache.sequence import Sequence as CacheSequence
from ..scheduler.plan import StepPlan
from ..scheduler.request import RequestStatus
from ..scheduler.scheduler import Scheduler
from .simulated_device import SimulatedRequest

if TYPE_CHECKING:
    from .simulator import Simulator


def check_plan(plan: StepPlan, scheduler: Scheduler) -> None:
    """Verify that a plan survives JSON, and that its rows stand in waves.

    Raises:
        AssertionError: It does not, or they do not.
    """
    assert StepPlan.from_json(plan.to_json()) == plan, "a plan survives JSON"
    requests = [row.request for row in plan.rows]
    assert len(set(requests)) == len(requests), "a request has one row a step"
    lengths = [row.length for row in plan.rows]
    assert all(lengths), "no row is empty"
    in_wave = [row.in_wave for row in plan.rows]
    assert in_wave == sorted(in_wave, reverse=True), "slices come behind the waves"
    waves = plan.waves
    assert [wave.query_len for wave in waves] == sorted({wave.query_len for wave in waves})
    assert sum(wave.num_rows for wave in waves) == sum(in_wave)
    live = {request.id for request in scheduler.requests}
    assert live.issuperset(requests), "rows belong to requests that have not ended"


def check_contents(simulator: Simulator) -> None:
    """Verify that sequences, published blocks and snapshots hold the content they stand for.

    Raises:
        AssertionError: A slot or a state has another content.
    """
    live = [known for known in simulator.requests.values() if _sequence(known) is not None]
    for known in live:
        _check_blocks(simulator, known)
        _check_state(simulator, known)
    sequences = {known.request.sequence.id for known in live}
    assert simulator.device.states.sequences <= sequences, "states end with their sequences"
    simulator.device.forget(sequences)
    for known in simulator.requests.values():
        _check_published(simulator, known)


def _sequence(known: SimulatedRequest) -> CacheSequence | None:
    return known.request.sequence


def _check_blocks(simulator: Simulator, known: SimulatedRequest) -> None:
    """Verify the committed positions that a sequence's next token sees."""
    request, size = known.request, simulator.setup.block_size
    sequence: CacheSequence = request.sequence
    frontier = sequence.frontier
    assert sequence.tokens == request.tokens[: len(sequence.tokens)]
    expected = simulator.model.contents(known.prompt, request.salt, request.tokens[:frontier])
    for group, spec in enumerate(simulator.setup.layout.groups):
        blocks = sequence.tables[group].blocks
        # a window that has given way to a step in flight is not read any more
        gone = sequence.tables[group].num_expired * size
        for position in range(max(spec.first_visible(frontier), gone), frontier):
            slot = (group, blocks[position // size].id, position % size)
            assert simulator.device.slots[slot] == expected[position], (
                f"position {position} of request {request.id} in group {group}"
            )


def _check_state(simulator: Simulator, known: SimulatedRequest) -> None:
    """Verify that the state of a sequence is that of plain decoding up to its cursor."""
    request = known.request
    newest = simulator.device.states.newest(request.sequence.id)
    if newest is None:
        return
    position, state = newest
    waits = request.status is RequestStatus.WAITING_FOR_SSD
    end = request.sequence.frontier if waits else request.sequence.cursor
    assert position == end, "the state follows the cursor"
    if position <= len(request.tokens) and not request.is_verifying:
        contents = simulator.model.contents(
            known.prompt, request.salt, request.tokens[:position]
        )
        assert state == contents[-1], f"the state of request {request.id}"


def _check_published(simulator: Simulator, known: SimulatedRequest) -> None:
    """Verify what the prefix tables have of a request's tokens, running or not."""
    request = known.request
    chain = _chain(simulator, known.prompt, request.salt, request.tokens)
    expected = simulator.model.contents(known.prompt, request.salt, request.tokens)
    size, states = simulator.setup.block_size, simulator.cache.kinds.states
    for index, block_hash in enumerate(chain.hashes):
        contents = tuple(expected[index * size : (index + 1) * size])
        for group, _ in enumerate(simulator.setup.layout.groups):
            block = simulator.cache.groups[group].lookup(chain, index)
            if block is not None:
                assert simulator.device.read_block(group, block.id) == contents
        if states is not None and states.keeper is not None:
            assert states.keeper.state_at(block_hash) in {None, contents[-1]}


def _chain(
    simulator: Simulator, prompt: Prompt, salt: SaltDomain, tokens: list[int]
) -> PrefixChain:
    size = simulator.setup.block_size
    chain = PrefixChain(size, salt, prompt.extra_keys(size))
    chain.extend(tokens, len(tokens) // size)
    return chain
