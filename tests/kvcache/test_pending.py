from __future__ import annotations

from neve.ids import BlockHash, SequenceId
from neve.kvcache.pending import PendingBlocks

A, B = SequenceId(1), SequenceId(2)
H = [BlockHash(bytes([i])) for i in range(3)]


def test_the_first_claim_holds() -> None:
    """KV-2: a block that two sequences compute is awaited from the first of them."""
    pending = PendingBlocks()
    pending.claim(A, H[:2])
    pending.claim(B, H)

    assert not pending.withdraw(B, H[:2])
    assert [h in pending for h in H] == [True, True, True]
    assert pending.owners == {A, B}
    assert pending.withdraw(B, H)
    assert [h in pending for h in H] == [True, True, False]
    assert (pending.owners, len(pending)) == ({A}, 2)
