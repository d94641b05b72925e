"""Names for the integers and byte strings that must not be mixed up."""

from __future__ import annotations

from typing import NewType

BlockId = NewType("BlockId", int)
"""Index of a block in its group's pool. 0 is the null block."""

BlockHash = NewType("BlockHash", bytes)
"""Chained digest of a full block: its parent, tokens, extra keys and salt domain."""

SaltDomain = NewType("SaltDomain", int)
"""Sharing domain of a request, 64 bits of a SHA-256; 0 is the shared domain."""

SequenceId = NewType("SequenceId", int)
"""Names one sequence in every group."""

RequestId = NewType("RequestId", int)
"""Names one request; ids rise in arrival order."""

ColdKey = NewType("ColdKey", bytes)
"""Names a cold object: a digest of its group, its model and the chain that it ends."""

Fingerprint = NewType("Fingerprint", bytes)
"""Digest of everything that decides what a model writes into its cache."""

NULL_BLOCK = BlockId(0)
SHARED_DOMAIN = SaltDomain(0)
