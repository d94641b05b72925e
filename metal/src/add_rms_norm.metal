// total = x + delta, out = norm(total); one threadgroup for each token.
// x, delta [T, W]   weight, delta_weight [W]   fp = {eps, eps of delta's norm}
// total, out [T, W]
// template T, W, ZERO (1 + weight), NORMED (delta is normed first), DZERO (1 + delta_weight),
//   C (words of 8 elements in a thread)
// grid (threads * T, 1, 1), threads of a threadgroup >= W / (8 * C)
  threadgroup float sums[32];
  threadgroup float delta_sums[32];
  const int thread_id = int(thread_index_in_threadgroup);
  const int lane = int(thread_index_in_simdgroup);
  const int simdgroup = int(simdgroup_index_in_threadgroup);
  const int simdgroups = int(simdgroups_per_threadgroup);
  const int stride = simdgroups * 32 * 8;
  const long row = long(threadgroup_position_in_grid.x) * W;

  float sum[C][8];
  float add[C][8];
  // wide rows load weights late, because registers are few
  float gain[C > 2 ? 1 : C][8];
#pragma unroll
  for (int i = 0; i < C; ++i) {
    const int e = i * stride + thread_id * 8;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      sum[i][j] = 0.0f;
      add[i][j] = 0.0f;
      gain[C > 2 ? 0 : i][j] = 0.0f;
    }
    if (e < W) {
      mkx_load<8>(x + row + e, sum[i]);
      mkx_load<8>(delta + row + e, add[i]);
      if (C <= 2) {
        mkx_load<8>(weight + e, gain[C > 2 ? 0 : i]);
      }
    }
  }

  if (NORMED) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < C; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        squares += add[i][j] * add[i][j];
      }
    }
    squares = simd_sum(squares);
    if (lane == 0) {
      delta_sums[simdgroup] = squares;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    squares = simd_sum(lane < simdgroups ? float(delta_sums[lane]) : 0.0f);
    const float inverse = metal::precise::rsqrt(squares / float(W) + fp[1]);
#pragma unroll
    for (int i = 0; i < C; ++i) {
      const int e = i * stride + thread_id * 8;
      float delta_gain[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        delta_gain[j] = 0.0f;
      }
      if (e < W) {
        mkx_load<8>(delta_weight + e, delta_gain);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float scale = delta_gain[j] + (DZERO ? 1.0f : 0.0f);
        add[i][j] = float(T(add[i][j] * inverse * scale));
      }
    }
  }

  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < C; ++i) {
    const int e = i * stride + thread_id * 8;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      // rounded: the norm sees the same values as the next residual sum
      sum[i][j] = float(T(sum[i][j] + add[i][j]));
      squares += sum[i][j] * sum[i][j];
    }
    if (e < W) {
      mkx_store<8>(total + row + e, sum[i]);
    }
  }
  squares = simd_sum(squares);
  if (lane == 0) {
    sums[simdgroup] = squares;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  squares = simd_sum(lane < simdgroups ? float(sums[lane]) : 0.0f);
  const float inverse = metal::precise::rsqrt(squares / float(W) + fp[0]);
#pragma unroll
  for (int i = 0; i < C; ++i) {
    const int e = i * stride + thread_id * 8;
    if (C > 2 && e < W) {
      mkx_load<8>(weight + e, gain[0]);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float scale = gain[C > 2 ? 0 : i][j] + (ZERO ? 1.0f : 0.0f);
      sum[i][j] = sum[i][j] * inverse * scale;
    }
    if (e < W) {
      mkx_store<8>(out + row + e, sum[i]);
    }
  }
