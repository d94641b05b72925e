"""The protocol of writing in place, on the GPU: whoever has the token sees what was written."""

from __future__ import annotations

import attrs
import mlx.core as mx
import pytest

from neve.metal.runtime.launch import Kernel, Launch, ints

pytestmark = pytest.mark.gpu

WIDTH = 1024
BATCH = 4
NUM_STEPS = 24
NUM_LAYERS = 3
POOL_MIB = 512


@attrs.frozen
class OwnKernel(Kernel):
    """A kernel whose body stands here."""

    text: str

    @property
    def body(self) -> str:
        return self.text


APPEND = OwnKernel(
    "test_append",
    ("rows", "places", "pool", "prev", "ip"),
    ("token",),
    """
  const int i = int(thread_position_in_grid.x);
  const int row = int(thread_position_in_grid.y);
  const int width = ip[0];
  auto written = mkx_mutable(pool);
  if (i < width) {
    written[long(places[row]) * width + i] = rows[row * width + i];
    if (i == 0 && row == 0) {
      token[0] = prev[0] + 1;
    }
  }
""",
)

TOTAL = OwnKernel(
    "test_total",
    ("pool", "places", "token", "ip"),
    ("out",),
    """
  const int i = int(thread_position_in_grid.x);
  const int row = int(thread_position_in_grid.y);
  const int width = ip[0];
  const int batch = ip[1];
  if (i < width) {
    float sum = 0.0f;
    for (int place = row; place <= places[row]; place += batch) {
      sum += float(pool[long(place) * width + i]);
    }
    out[row * width + i] = sum;
  }
""",
)


def append(rows: mx.array, places: mx.array, pool: mx.array, prev: mx.array) -> mx.array:
    launch = Launch({}, (WIDTH, BATCH, 1), (256, 1, 1), [((1,), mx.int32)])
    return APPEND(rows, places, pool, prev, ints(WIDTH), launch=launch)[0]


def total(pool: mx.array, places: mx.array, token: mx.array) -> mx.array:
    launch = Launch({}, (WIDTH, BATCH, 1), (256, 1, 1), [((BATCH, WIDTH), mx.float32)])
    return TOTAL(pool, places, token, ints(WIDTH, BATCH), launch=launch)[0]


def step(pools: list[mx.array], tokens: list[mx.array], number: int) -> mx.array:
    """Write `number + 1` behind what earlier steps wrote, and return the layers' sums."""
    places = mx.arange(BATCH, dtype=mx.int32) + number * BATCH
    sums = mx.zeros((BATCH, WIDTH))
    for layer, pool in enumerate(pools):
        rows = mx.full((BATCH, WIDTH), number + 1.0) + 0 * sums
        tokens[layer] = append(rows.astype(pool.dtype), places, pool, tokens[layer])
        sums = sums + total(pool, places, tokens[layer])
    return sums


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_pools_stay_in_place_while_steps_are_in_flight(dtype: mx.Dtype):
    """PK-1, PK-2: steps that nobody waits for see all writes before them, and copy no pool."""
    num_places = POOL_MIB * 2**20 // (WIDTH * dtype.size)
    pools = [mx.zeros((num_places, WIDTH), dtype) for _ in range(NUM_LAYERS)]
    tokens = [mx.zeros((1,), mx.int32) for _ in pools]
    mx.eval(pools, tokens)
    mx.synchronize()
    mx.reset_peak_memory()
    pools_bytes = mx.get_active_memory()
    sums: list[mx.array] = []
    for number in range(NUM_STEPS):
        sums.append(step(pools, tokens, number))
        mx.async_eval(sums[-1])

    for number, got in enumerate(sums):
        assert mx.all(got == NUM_LAYERS * (number + 1) * (number + 2) / 2).item(), number
    assert [token.item() for token in tokens] == [NUM_STEPS] * NUM_LAYERS
    assert mx.get_peak_memory() - pools_bytes < 0.1 * pools_bytes
