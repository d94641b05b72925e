"""Sliding windows against mlx-lm on the tiny checkpoints, and what windows save."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx

import neve
from neve.contract.cache_spec import CacheLayout, SlidingWindow, uniform_layout
from neve.contract.forward import Scoring
from neve.engine.lanes import PagedLane
from neve.forward.step_batch import RowInput, build_step_batch
from neve.ids import SequenceId
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.block_table import blocks_for
from neve.kvcache.coordinator import Coordinator
from neve.kvcache.sequence import Sequence
from neve.pools.layer_pool import LayerPool

from .figures import Figure, bounded, interleaved, random_tokens, seconds
from .hybrids import CHECKPOINTS, VOCABULARY, _family

FAMILIES = ("gemma4", "muse_glimmer")
BLOCK_SIZE = 16
LENGTHS = (2048, 8192, 32_768)
SLIDING = SlidingWindow(512, kv_heads=4, head_dim=128)
NUM_LAYERS = 8
STEPS = 40


def windows() -> list[Figure]:
    """Each family beside mlx-lm, then what a context costs its windows."""
    return [
        *[figure for family in FAMILIES for figure in _beside_mlx_lm(family)],
        _decode(),
        *[figure for family in FAMILIES for figure in _long(family)],
    ]


# -- beside mlx-lm -------------------------------------------------------------------------


@contextmanager
def _adapted(family: str, **text: Any) -> Iterator[Path]:
    """Write a checkpoint as mlx-lm can read it, and take it away in the end.

    It looks for gemma4's vocabulary size beside the text model's config, and has no place for
    vision weights.

    Args:
        family: A folder of `checkpoints/`.
        **text: Keys of the text model's config that are to have other values.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, source = Path(folder), CHECKPOINTS / family
        for file in source.glob("*token*.json"):
            shutil.copy(file, path)
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        config["text_config"] |= text
        config["vocab_size"] = config["text_config"]["vocab_size"]
        (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        stored: Any = mx.load(str(source / "model.safetensors"))
        weights = {name: array for name, array in stored.items() if "vision" not in name}
        mx.save_safetensors(str(path / "model.safetensors"), weights, {"format": "mlx"})
        yield path


def _beside_mlx_lm(family: str) -> list[Figure]:
    with _adapted(family) as path:
        figures = _family(str(path))  # an absolute path stands for itself
    return [attrs.evolve(f, name=f.name.replace(str(path), family)) for f in figures]


# -- layers with a window alone ------------------------------------------------------------


@attrs.frozen(eq=False)
class _Row:
    """A sequence that decodes behind `length` tokens, in layers that all have a window."""

    layout: CacheLayout
    lane: PagedLane
    sequence: Sequence
    length: int

    @classmethod
    def of(cls, length: int) -> _Row:
        layout = uniform_layout(SLIDING, NUM_LAYERS)
        num_blocks = blocks_for(length, BLOCK_SIZE) + 2
        pool = LayerPool(SLIDING, NUM_LAYERS, num_blocks, BLOCK_SIZE, mx.float32)
        cache = Coordinator(layout, [BlockAllocator(num_blocks, BLOCK_SIZE)])
        lane = PagedLane(
            layout,
            [pool],
            cache,
            block_size=BLOCK_SIZE,
            max_num_seqs=1,
            max_context=length + BLOCK_SIZE,
        )
        sequence = cache.open(SequenceId(0), range(length))
        cache.attach(sequence, cache.match_prefix(sequence))
        for _ in range(length // BLOCK_SIZE):
            cache.reserve(sequence, BLOCK_SIZE)
            cache.commit(sequence, BLOCK_SIZE)
            cache.publish(sequence)
        cache.reserve(sequence, 1)
        return cls(layout, lane, sequence, length)

    def step(self) -> None:
        """Compute the attention of one token in all layers; the cursor stays."""
        batch = build_step_batch([RowInput(self.length, [0])], None)
        context = self.lane.context(batch, [self.sequence])
        heads = SLIDING.kv_heads
        x = mx.ones((1, 2 * heads, SLIDING.head_dim))
        for layer in range(NUM_LAYERS):
            x = context.attend(layer, x, x[:, :heads], x[:, :heads], scoring=Scoring(0.1))
        mx.eval(x, *self.lane.arrays([self.sequence]))


def _decode() -> Figure:
    """Return what a step of sliding layers costs behind 8k tokens, beside 512."""
    long, short = _Row.of(8192), _Row.of(512)

    def microseconds(row: _Row) -> float:
        return statistics.median(seconds(row.step) for _ in range(STEPS)) * 1e6

    times = interleaved([lambda _: microseconds(long), lambda _: microseconds(short)], 9)
    detail = f"{times[0]:.0f} us against {times[1]:.0f} us, {NUM_LAYERS} layers"
    name = f"window {SLIDING.window}: a decode step at 8k/512 tokens"
    return bounded(name, times[0] / times[1], 1.1, "x", detail)


# -- what a long context takes -------------------------------------------------------------


def _long(family: str) -> list[Figure]:
    """Return a row's blocks at several lengths, and the bytes of pools for the longest."""
    context = LENGTHS[-1] + BLOCK_SIZE
    with (
        _adapted(family, max_position_embeddings=context) as path,
        neve.load(path, dtype="float32", max_num_seqs=1, max_context=context) as model,
    ):
        blocks = [_resident(family, model, length) for length in LENGTHS]
        return [*blocks, _pools(family, model, context)]


def _resident(family: str, model: neve.Model, length: int) -> Figure:
    """Return the blocks that a row holds of a window while it decodes."""
    spec, group = _window(model)
    # one text at all lengths: what a shorter one has computed is hit
    prompt = [token % VOCABULARY for token in random_tokens(LENGTHS[-1], 0)][: length - 8]
    pieces = model.stream(prompt, max_tokens=8, ignore_eos=True)
    held = [model.stats().pools for _ in pieces]
    most = max(pools.groups[group].num_live for pools in held if pools is not None)
    bound = blocks_for(spec.window - 1 + 2, BLOCK_SIZE) + 1
    name = f"{family}: blocks of a window of {spec.window} at {length} tokens"
    return bounded(name, most, bound, "blocks", f"{blocks_for(length, BLOCK_SIZE)} without it")


def _pools(family: str, model: neve.Model, context: int) -> Figure:
    """Return what the pools of one row take beside one cache of the context a layer."""
    layout, itemsize = _layout(model), mx.float32.size
    pools = model.stats().pools
    assert pools is not None
    ours = sum(
        layout.block_bytes(index, BLOCK_SIZE, itemsize) * group.num_blocks
        for index, group in enumerate(pools.groups)
    )
    owners = [layout.owner(layer).group for layer in range(layout.num_layers)]
    elements = sum(layout.groups[group].token_elements() for group in owners)
    naive = elements * context * itemsize
    detail = f"{ours / 2**20:.1f} MiB against {naive / 2**20:.1f} MiB"
    name = f"{family}: pools of a row of 32k tokens/a cache of 32k a layer"
    return bounded(name, ours / naive, 0.5, "x", detail)


def _layout(model: neve.Model) -> CacheLayout:
    return model.info.family.declare_cache_groups(model.info.config)


def _window(model: neve.Model) -> tuple[SlidingWindow, int]:
    """Return the window of a model's sliding layers, and their group."""
    (group,) = _layout(model).windows
    spec = _layout(model).groups[group]
    assert isinstance(spec, SlidingWindow)
    return spec, group
