"""Distribution of attention over pages on a GPU: pure arithmetic on shapes.

The key of a token is spread over as few lanes as hold it in words of 16 bytes, so a simdgroup
computes several tokens at once. Each lane keeps its part of the queries and of the sums for all
pairs of a query and a head that share the key. So each key is read once.
"""

from __future__ import annotations

import functools

import attrs
import mlx.core as mx

from ..runtime.launch import Template
from .head_shape import Making
from .pages import FLOATS, Layout

SIMDGROUPS = 4
"""Simdgroups of a threadgroup; launches of few threadgroups have more."""
STAGED = 5120
"""Elements of results that fit into threadgroup memory; `FIT` in the body."""
PROCESSORS = 132
"""Processors of a large GPU; a smaller GPU gets more threadgroups than it needs."""
SHORTEST_SPLIT = 128
"""Tokens below which a split does not pay for its threadgroup."""
UNSPLIT = 512
"""Tokens up to which a context is not split: a second launch costs more than splits gain."""
MOST_SPLITS = 128
SLACK = 1.05
"""Allowed time of a smaller number of splits, relative to the best number."""


@attrs.frozen
class Shape:
    """Everything that a kernel is compiled for.

    Attributes:
        dtype: Dtype of queries, keys and values.
        page: The shape of a page.
        group: Query heads of a key head.
        capped: Whether scores have a softcap.
        sunk: Whether scores have sinks.
        queries: Consecutive queries of one sequence in a tile; None in decoding, with one query
            of each sequence.
        making: How heads are made of projections; None if queries are given.
        simdgroups: Simdgroups of a threadgroup, a multiple of four.
    """

    dtype: mx.Dtype
    page: Layout
    group: int
    capped: bool
    sunk: bool
    queries: int | None = None
    making: Making | None = None
    simdgroups: int = SIMDGROUPS

    @property
    def unsupported(self) -> str | None:
        """Why no kernel supports the shape, None if one does."""
        if self.dtype not in FLOATS:
            return f"no kernel for {self.dtype}"
        if self._widest > 512 or self.page.dims % self.vector or self.page.v_dims % self.vector:
            return f"no kernel for heads of {self.page.dims} and {self.page.v_dims} elements"
        return None

    @property
    def vector(self) -> int:
        """Elements of a head that a lane holds."""
        return 8 if self._widest <= 256 else 16

    @property
    def lanes(self) -> int:
        """Lanes that hold a token, a power of two."""
        return 1 << (-(-self._widest // self.vector) - 1).bit_length()

    @property
    def most_pairs(self) -> int:
        """Pairs of a query and a head that fit into the registers of a simdgroup."""
        return 64 // self.vector

    @property
    def pairs(self) -> int:
        """Pairs of a query and a head in a tile."""
        return (self.queries or 1) * self.group

    @property
    def parts(self) -> int:
        """Simdgroups over which a tile's pairs are spread."""
        return -(-self.pairs // self.most_pairs)

    @property
    def sharing(self) -> int:
        """Simdgroups of a threadgroup that compute the same tokens for different pairs."""
        return min(SIMDGROUPS, 1 << (self.parts - 1).bit_length())

    @property
    def unroll(self) -> int:
        """Tokens that a lane computes at once."""
        return min(self.lanes, 2 if self.dtype == mx.float32 or self.vector > 8 else 4)

    @property
    def threadgroups(self) -> int:
        """Threadgroups of a tile, without splits."""
        return self.page.heads * -(-self.parts // self.sharing)

    @property
    def resident(self) -> int:
        """Threadgroups whose registers fit into a processor (128, 168, 255 a thread)."""
        simdgroups = 16 if self._held <= 16 else 12 if self._held <= 32 else 8
        return max(1, simdgroups // self.simdgroups)

    @property
    def _held(self) -> int:
        """Elements of queries in a lane; sums have as many."""
        return -(-self.pairs // self.parts) * self.vector

    def widened(self, tiles: int) -> Shape:
        """Return the shape for a number of tiles: few threadgroups become larger ones.

        Larger threadgroups need fewer rounds for a context. The sizes stay below the limit of
        registers, because the compiler decides their number and a launch with too many fails.
        """
        if tiles * self.threadgroups > PROCESSORS // 4:
            return self
        room = STAGED // self.page.v_dims // SIMDGROUPS * SIMDGROUPS
        return attrs.evolve(self, simdgroups=min(12 if self._held <= 16 else 8, room))

    def tiled(self, length: int) -> Shape:
        """Return the shape for a slice; tiles have few sizes, because each size is compiled."""
        room = max(1, SIMDGROUPS * self.most_pairs // self.group)
        tile = min(1 << (room.bit_length() - 1), 4 if length <= 4 else 16)
        return attrs.evolve(self, queries=tile)

    @property
    def _widest(self) -> int:
        return max(self.page.dims, self.page.v_dims)


@functools.lru_cache(maxsize=256)
def template_for(shape: Shape, single: bool) -> Template:
    """Return the compile-time constants of a shape; `single` means without splits."""
    making = shape.making or Making(query_stride=shape.page.dims)
    return {
        "T": shape.dtype,
        "D": shape.page.dims,
        "DV": shape.page.v_dims,
        "S": shape.page.size,
        "HK": shape.page.heads,
        "G": shape.group,
        "QT": shape.queries or 1,
        "CAUSAL": shape.queries is not None,
        "CAP": shape.capped,
        "SINKS": shape.sunk,
        "SINGLE": single,
        "VEC": shape.vector,
        "LPT": shape.lanes,
        "U": shape.unroll,
        "GT": -(-shape.pairs // shape.parts),
        "HS": shape.sharing,
        "NSG": shape.simdgroups,
        "MAKES": shape.making is not None,
        "STORES": making.stores,
        "QS": making.query_stride,
        "ROT": making.turned_dims,
        "INTER": making.interleaved,
        "QN": making.norms[0],
        "KN": making.norms[1],
        "VN": making.norms[2],
    }


@functools.lru_cache(maxsize=1024)
def num_splits(shape: Shape, tiles: int, longest: int) -> int:
    """Return the number of splits of contexts of at most `longest` tokens.

    Threadgroups run in waves, as many at once as registers allow. The time of a wave is the
    length of a split. A nearly empty last wave takes as long as a full one, so the last wave
    decides.
    """
    if longest <= UNSPLIT:
        return 1
    at_once, threadgroups = PROCESSORS * shape.resident, tiles * shape.threadgroups
    choices = range(1, min(longest // SHORTEST_SPLIT, MOST_SPLITS) + 1)
    time = {splits: -(-threadgroups * splits // at_once) / splits for splits in choices}
    best = min(time.values())
    return next(splits for splits in choices if time[splits] <= SLACK * best)


def least_rounds(shape: Shape) -> int:
    """Return the rounds of tokens from which on a further threadgroup pays."""
    tokens = 32 // shape.lanes * shape.unroll * (shape.simdgroups // shape.sharing)
    return -(-SHORTEST_SPLIT // tokens)


def makes_heads(shape: Shape, width: int) -> bool:
    """Return whether a threadgroup can make heads itself, of rows of `width` elements.

    Lanes load whole words of a row, so all elements of a word or none are rotated. One
    threadgroup has all queries of a key.
    """
    making = shape.making
    if making is None or shape.unsupported is not None:
        return False
    turned = making.turned_dims if making.interleaved else making.turned_dims // 2
    # words have 16 bytes: 8 elements of 2 bytes; float32 obeys the same rule
    aligned = width % 8 == making.query_stride % 8 == turned % shape.vector == 0
    return aligned and shape.threadgroups == shape.page.heads
