// Norms of groups of D elements; the gates are columns of wider rows.
// x [N, H, D]  rows [N, W]  weight [D], or [H, D] if its stride is D
// ip = {W, first column of the gates, stride of the weight}   fp = {eps}   out [N, H, D]
// template D, BEFORE:
//   false: out = x / rms(x) * weight * silu(gate)
//   true:  out = y / rms(y) * weight, y = x * silu(gate)
// A threadgroup computes a group; grid (32 * SIMDS * N, H, 1)
  constexpr int SIMDS = D <= 256 ? 1 : (D <= 1024 ? 4 : 8);
  constexpr int THREADS = 32 * SIMDS;
  constexpr int QUADS = (D / 4 + THREADS - 1) / THREADS;
  threadgroup float partial[SIMDS];
  const int tid = int(thread_index_in_threadgroup);
  const int h = int(threadgroup_position_in_grid.y);
  const long n = long(threadgroup_position_in_grid.x);
  const int num_groups = int(threadgroups_per_grid.y);
  auto values = x + (n * num_groups + h) * D;
  auto gates = rows + n * ip[0] + ip[1] + h * D;
  auto scales = weight + h * ip[2];
  auto to = out + (n * num_groups + h) * D;

  float y[4 * QUADS];
  float gate[4 * QUADS];
  float square = 0.0f;
#pragma unroll
  for (int i = 0; i < QUADS; ++i) {
    const int at = 4 * (tid + THREADS * i);
    if (at < D) {
      mkx_load<4>(values + at, y + 4 * i);
      mkx_load<4>(gates + at, gate + 4 * i);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        y[4 * i + j] = 0.0f;
        gate[4 * i + j] = 0.0f;
      }
    }
#pragma unroll
    for (int j = 4 * i; j < 4 * i + 4; ++j) {
      gate[j] = gate[j] / (1.0f + metal::exp(-gate[j]));
      y[j] = BEFORE ? y[j] * gate[j] : y[j];
      square += y[j] * y[j];
    }
  }
  square = simd_sum(square);
  if (SIMDS > 1) {
    if (thread_index_in_simdgroup == 0) {
      partial[tid / 32] = square;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    square = 0.0f;
    for (int i = 0; i < SIMDS; ++i) {
      square += partial[i];
    }
  }
  const float scale = metal::rsqrt(square / float(D) + fp[0]);
#pragma unroll
  for (int i = 0; i < QUADS; ++i) {
    const int at = 4 * (tid + THREADS * i);
    if (at < D) {
      float by[4];
      mkx_load<4>(scales + at, by);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float normed = y[4 * i + j] * scale * by[j];
        y[4 * i + j] = BEFORE ? normed : normed * gate[4 * i + j];
      }
      mkx_store<4>(to + at, y + 4 * i);
    }
  }
