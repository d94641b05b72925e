"""The blocks of a prompt that a store could restore, and the cause of the first miss."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import attrs

from ...contract.sidecar import SidecarPolicy
from ...errors import ObjectRejectedError
from ...ids import SHARED_DOMAIN, Fingerprint, SaltDomain
from ..objects.format import verify_object
from ..objects.keys import ColdChain, ColdGroup, ObjectName
from ..store.store import ColdStore
from ..transfer.walk import RestorePlan, plan_restore
from .listing import list_entries
from .verification import MAX_OBJECT_BYTES

REASONS = {
    "too_short": "no whole block ends before the last token, which is always computed",
    "empty_store": "the store is empty",
    "other_models": (
        "the store has objects of other models only: other weights, another config, dtype or "
        "block size, or another version of the family"
    ),
    "salt": (
        "under this salt no prompt with this start was written, or the objects were evicted; "
        "objects of other salts are not looked up"
    ),
    "no_block": "no prompt with this start was written, or the objects were evicted",
    "no_continuation": (
        "stored prompts diverge from this prompt here, or later blocks were evicted"
    ),
    "hole": "later blocks are in the store, but this block was evicted or removed",
    "unsound": "an object is damaged; `neve cache verify` names the fault",
    "no_sidecar": "the blocks are in the store, but no sidecar at the end of any of them",
}
"""Miss cause -> its explanation."""


@attrs.frozen
class BlockRange:
    """Blocks `[first, end)`, and whether they are in the store."""

    first: int
    end: int
    present: bool


@attrs.frozen
class Explanation:
    """The part of a prompt that a store could restore.

    Attributes:
        num_tokens: Tokens of the prompt.
        block_size: Tokens of a block.
        num_blocks: Whole blocks that a restore could return: all before the last token.
        ranges: Presence of the blocks, in order.
        restorable_blocks: Number of blocks that a restore would return.
        cause: Miss cause of the next block, a key of `REASONS`; None if there is no miss.
    """

    num_tokens: int
    block_size: int
    num_blocks: int
    ranges: tuple[BlockRange, ...]
    restorable_blocks: int
    cause: str | None

    @property
    def first_missing(self) -> int | None:
        """Index of the first block that a restore would miss; None without a miss."""
        return None if self.cause is None else self.restorable_blocks

    @property
    def reason(self) -> str | None:
        """The miss cause explained in one sentence."""
        return None if self.cause is None else REASONS[self.cause]


@attrs.frozen(kw_only=True, eq=False)
class Prefix:
    """A prompt, with everything that its object names depend on.

    Attributes:
        tokens: The prompt's tokens.
        fingerprint: Fingerprint of the model.
        block_size: Tokens of a block.
        policy: Policy of the family's sidecars; None for a family without sidecars.
        salt: Sharing domain of the prompt.
    """

    tokens: Sequence[int]
    fingerprint: Fingerprint
    block_size: int
    policy: SidecarPolicy | None = None
    salt: SaltDomain = SHARED_DOMAIN

    def chain(self, num_blocks: int) -> ColdChain:
        """Return a chain with the names of the prompt's first blocks."""
        chain = ColdChain(self.fingerprint, self.block_size, self.salt)
        chain.extend(self.tokens, num_blocks)
        return chain


def explain(store: ColdStore, prefix: Prefix) -> Explanation:
    """Return the blocks of a prompt that a restore would return, and the miss cause.

    The objects are read and verified, and none is removed. The answer covers neither blocks
    in a model's memory, nor an engine's choice to prefill where a restore would be slower.
    """
    limit = max(0, len(prefix.tokens) - 1) // prefix.block_size
    chain = prefix.chain(limit)
    present = [store.probe(name) for name in chain.blocks]
    plan = plan_restore(
        store, chain, prefix.tokens, 0, limit, policy=prefix.policy, salt=prefix.salt
    )
    reach = _reach(store, chain, plan)
    cause = _cause(store, prefix, plan, present) if reach == plan.end else "unsound"
    return Explanation(
        num_tokens=len(prefix.tokens),
        block_size=prefix.block_size,
        num_blocks=limit,
        ranges=tuple(_ranges(present)),
        restorable_blocks=reach,
        cause=cause,
    )


def _ranges(present: Sequence[bool]) -> list[BlockRange]:
    ranges: list[BlockRange] = []
    for is_present, run in groupby(present):
        first = ranges[-1].end if ranges else 0
        ranges.append(BlockRange(first, first + len(list(run)), is_present))
    return ranges


def _is_sound(store: ColdStore, name: ObjectName) -> bool:
    stored = store.read(name, MAX_OBJECT_BYTES)
    if stored is None:
        return False
    try:
        verify_object(stored.data, name)
    except ObjectRejectedError:
        return False
    return True


def _reach(store: ColdStore, chain: ColdChain, plan: RestorePlan) -> int:
    """Return the number of a plan's blocks that are sound and backed."""
    sound = 0
    while sound < plan.end and _is_sound(store, chain.blocks[sound]):
        sound += 1
    if not plan.backings:
        return sound
    backed = (b for b in plan.backings if b.num_blocks <= sound and _is_sound(store, b.name))
    return next((backing.num_blocks for backing in backed), 0)


def _cause(
    store: ColdStore, prefix: Prefix, plan: RestorePlan, present: Sequence[bool]
) -> str | None:
    if not present:
        return "too_short"
    if plan.cause == "no_block" and any(present[plan.end :]):
        return "hole"
    if plan.cause == "no_block" and plan.end:
        return "no_continuation"
    if plan.cause in ("no_block", "salt"):
        return _cause_of_nothing(store, prefix.fingerprint) or plan.cause
    return plan.cause


def _cause_of_nothing(store: ColdStore, fingerprint: Fingerprint) -> str | None:
    """Return the miss cause if a store has no object of a model; None if it has one."""
    models = {entry.model for entry in list_entries(store)}
    if fingerprint in models:
        return None
    return "other_models" if models else "empty_store"


def stored_prefix(store: ColdStore, prefix: Prefix) -> list[ObjectName]:
    """Return the objects of a prompt up to the first hole, each state behind its block."""
    chain = prefix.chain(len(prefix.tokens) // prefix.block_size)
    names: list[ObjectName] = []
    for index, block in enumerate(chain.blocks):
        if not store.probe(block):
            break
        names.append(block)
        if prefix.policy is not None:
            group, boundary = ColdGroup(prefix.policy.group), (index + 1) * prefix.block_size
            sidecar = chain.sidecar(group, prefix.tokens, boundary)
            names += [sidecar] if store.probe(sidecar) else []
    return names
