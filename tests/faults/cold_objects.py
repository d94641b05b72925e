"""Cold objects by number, and the step with which a restore takes one from the store."""

from __future__ import annotations

import functools
import hashlib
import random

import attrs

from neve.coldtier.objects.format import (
    KvGeometry,
    ObjectLayout,
    decode_block,
    encode,
    encode_tokens,
    kv_layout,
)
from neve.coldtier.objects.keys import ColdGroup, ObjectName, object_key
from neve.coldtier.store.store import ColdStore
from neve.coldtier.transfer.reader import read_object
from neve.coldtier.transfer.ticket import ReadRequest
from neve.contract.page_format import keys_and_values
from neve.ids import ColdKey, Fingerprint

MODEL = Fingerprint(hashlib.sha256(b"a model").digest())
ROOT = ColdKey(bytes(32))


@attrs.frozen
class ColdObjects:
    """KV blocks of one geometry; number and geometry decide every byte.

    Attributes:
        geometry: Of a block.
    """

    geometry: KvGeometry

    @property
    def layout(self) -> ObjectLayout:
        return kv_layout(self.geometry)

    @property
    def num_bytes(self) -> int:
        """Bytes of one object's file."""
        return self.layout.max_bytes

    def tokens(self, number: int) -> list[int]:
        return [number] * self.geometry.block_size

    def name(self, number: int) -> ObjectName:
        return ObjectName(object_key(ColdGroup.KV, MODEL, ROOT, 0, self.tokens(number)))

    def payload(self, number: int) -> list[bytes]:
        """Return the tensors' bytes, the tokens first."""
        source = random.Random(number)
        layers = [source.randbytes(tensor.num_bytes) for tensor in self.layout.tensors[1:]]
        return [encode_tokens(self.tokens(number)), *layers]

    def parts(self, number: int):
        """Return the pieces of one object's file."""
        return encode(self.name(number), MODEL, self.layout, self.payload(number))

    def file_bytes(self, number: int) -> bytes:
        return b"".join(self.parts(number))

    def restore(self, store: ColdStore, number: int) -> list[bytes] | None:
        """Read, check, and on a fault reject an object, as a restore does.

        Returns:
            The layers' bytes, or None for a miss.
        """
        name, layout = self.name(number), self.layout
        decode = functools.partial(
            decode_block,
            name=name,
            fingerprint=MODEL,
            layout=layout,
            tokens=self.tokens(number),
        )
        payload = read_object(store, ReadRequest(name, layout.max_bytes, decode))
        return None if isinstance(payload, str) else [bytes(view) for view in payload]


SMALL = ColdObjects(KvGeometry(4, 2, keys_and_values(2, 8, 8), "F16"))
"""2 KB: the header is most of it."""

LARGE = ColdObjects(KvGeometry(16, 6, keys_and_values(4, 32, 32), "F16"))
"""50 KB: more than one page of the file system."""
