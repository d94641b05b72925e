"""Which blocks of a prompt a store would give back, and why the first miss misses."""

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
        "under this salt nothing was written that begins so, or it was evicted; what other "
        "salts wrote is not looked at"
    ),
    "no_block": "nothing that begins so was written, or it was evicted",
    "no_continuation": "what was written diverges from the prompt here, or its end was evicted",
    "hole": "later blocks are there: this one was evicted or removed",
    "unsound": "an object is damaged; `neve cache verify` says how",
    "no_sidecar": "the blocks are there, but no state that belongs behind one of them",
}
"""Cause of a miss -> what it means."""


@attrs.frozen
class BlockRange:
    """Blocks `[first, end)`, and whether they are in the store."""

    first: int
    end: int
    present: bool


@attrs.frozen
class Explanation:
    """What a store has of a prompt.

    Attributes:
        num_tokens: Tokens of the prompt.
        block_size: Tokens of a block.
        num_blocks: Whole blocks that could come back: all before the last token.
        ranges: Which of them are there, in order.
        restorable_blocks: How many would come back.
        cause: Why the next one would not, a key of `REASONS`; None if all would.
    """

    num_tokens: int
    block_size: int
    num_blocks: int
    ranges: tuple[BlockRange, ...]
    restorable_blocks: int
    cause: str | None

    @property
    def first_missing(self) -> int | None:
        """The first block that would not come back; None if all would."""
        return None if self.cause is None else self.restorable_blocks

    @property
    def reason(self) -> str | None:
        """The cause in one sentence."""
        return None if self.cause is None else REASONS[self.cause]


@attrs.frozen(kw_only=True, eq=False)
class Prefix:
    """A prompt as a model would look it up.

    Attributes:
        tokens: Its tokens.
        fingerprint: Of the model.
        block_size: Tokens of a block.
        policy: Of a family with state outside its blocks.
        salt: Sharing domain.
    """

    tokens: Sequence[int]
    fingerprint: Fingerprint
    block_size: int
    policy: SidecarPolicy | None = None
    salt: SaltDomain = SHARED_DOMAIN

    def chain(self, num_blocks: int) -> ColdChain:
        """Return the names of its first blocks."""
        chain = ColdChain(self.fingerprint, self.block_size, self.salt)
        chain.extend(self.tokens, num_blocks)
        return chain


def explain(store: ColdStore, prefix: Prefix) -> Explanation:
    """Return which blocks of a prompt would come back, and why not more.

    Reads and verifies what would; removes nothing. What a model in memory would add, and
    whether it would rather compute than read, is not known here.
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
    """Return how many blocks of a plan would come back, its objects read."""
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
    """Return why a store has nothing of a model, None if it has something."""
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
