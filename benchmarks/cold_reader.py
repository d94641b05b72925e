"""The path of a restore without a model: disk, checksums, and pages of a pool."""

from __future__ import annotations

import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import attrs
import mlx.core as mx

from neve.coldtier.objects.format import KvGeometry, encode, encode_tokens, kv_layout
from neve.coldtier.objects.keys import ColdChain
from neve.coldtier.stats import Counters
from neve.coldtier.store.store import ColdStore, StoreLimits
from neve.coldtier.tier import ColdTier
from neve.coldtier.transfer.capture import CaptureBudget
from neve.coldtier.transfer.reader import PORTION_BLOCKS
from neve.contract.layer_spec import FullAttention
from neve.contract.page_format import keys_and_values
from neve.ids import SHARED_DOMAIN, Fingerprint
from neve.pools.layer_pool import LayerPool

from .figures import Figure

NUM_BLOCKS = 93
ROUNDS = 15
LAYERS, HEADS, WIDTH, BLOCK = 30, 3, 64, 16
PAGE = keys_and_values(HEADS, WIDTH, WIDTH)
GEOMETRY = KvGeometry(BLOCK, LAYERS, PAGE, "F32")  # SmolLM2: 737 KB a block
TOKENS = list(range(NUM_BLOCKS * BLOCK))

_MODEL = Fingerprint(bytes(32))


@attrs.frozen
class Spent:
    """The time of a run, in milliseconds: wall-clock time, and time of all processors."""

    wall_ms: float
    cpu_ms: float


def _spent(function: Callable[[], object]) -> Spent:
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return Spent(1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu))


def _fill(store: ColdStore) -> None:
    layout = kv_layout(GEOMETRY)
    chain = ColdChain(_MODEL, BLOCK)
    chain.extend(TOKENS, NUM_BLOCKS)
    with mock.patch.object(os, "fsync"):
        for i, name in enumerate(chain.blocks):
            tokens = encode_tokens(TOKENS[i * BLOCK : (i + 1) * BLOCK])
            pages = [os.urandom(tensor.num_bytes) for tensor in layout.tensors[1:]]
            parts = encode(name, _MODEL, layout, [tokens, *pages], chain.after(i))
            store.write(name, parts, time.time_ns() - 1000 * i)


def _restore(tier: ColdTier, pool: LayerPool) -> None:
    """Restore a prefix as an engine does that has nothing else to do."""
    chain = tier.chain(SHARED_DOMAIN)
    assert chain is not None
    ticket = tier.begin(tier.plan(chain, TOKENS, 0, NUM_BLOCKS), chain, TOKENS)
    done = 0
    while not tier.reader.is_done(ticket):
        payloads = tier.reader.take(ticket, PORTION_BLOCKS)
        if payloads:
            block_ids = range(1 + done, 1 + done + len(payloads))
            pool.write_blocks(block_ids, [piece for payload in payloads for piece in payload])
            mx.eval(pool.arrays())
            done += len(payloads)
        tier.reader.wait(0.002)
    tier.reader.forget(ticket)
    if done != NUM_BLOCKS:
        raise RuntimeError(f"{done} of {NUM_BLOCKS} blocks came back")


def _read_and_hash(paths: list[Path]) -> None:
    for path in paths:
        hashlib.sha256(path.read_bytes()).digest()


def cold_reader() -> list[Figure]:
    """A restore against reading and hashing the same files, taking turns."""
    pool = LayerPool(
        FullAttention(kv_heads=HEADS, head_dim=WIDTH), LAYERS, 400, BLOCK, mx.float32
    )
    with tempfile.TemporaryDirectory() as folder:
        limits = StoreLimits(10**9, 0, None)
        store = ColdStore.open(Path(folder) / "cold", limits, Counters())
        _fill(store)
        tier = ColdTier(store, GEOMETRY, CaptureBudget(NUM_BLOCKS, 1.0))
        tier.identify(_MODEL)
        paths = list(Path(folder).rglob("*.safetensors"))
        rounds = [
            (_spent(lambda: _restore(tier, pool)), _spent(lambda: _read_and_hash(paths)))
            for _ in range(ROUNDS + 1)
        ][1:]
        tier.close(10)
    return _figures(rounds)


def _figures(rounds: list[tuple[Spent, Spent]]) -> list[Figure]:
    ratio = statistics.median(bare.wall_ms / ours.wall_ms for ours, bare in rounds)
    ours_ms, bare_ms = (statistics.median(r[i].wall_ms for r in rounds) for i in (0, 1))
    ours_cpu, bare_cpu = (statistics.median(r[i].cpu_ms for r in rounds) for i in (0, 1))
    megabytes = NUM_BLOCKS * kv_layout(GEOMETRY).max_bytes / 1e6
    speeds = f"{1e3 * megabytes / ours_ms:.0f} against {1e3 * megabytes / bare_ms:.0f} MB/s"
    name = "restore without a model, against reading and hashing alone"
    return [
        Figure(name, ratio, "x", ">= 0.75x", ratio >= 0.75, speeds),
        Figure(
            "the same, processor time",
            ours_cpu / bare_cpu,
            "x",
            "-",
            True,
            f"{ours_cpu:.0f} against {bare_cpu:.0f} ms",
        ),
    ]
