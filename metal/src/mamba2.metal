// Mamba-2 over L tokens of each row: S = g S + dt x B^T, y = S C = g S C + dt x (B.C).
// x, dt, b, c     rows of tokens [N * L, ...]; ip has row lengths and first columns, so that
//                 all of them may be parts of one array
// a               [H]; dt_bias, skip [H], read if RAW
// state           [N, H, P, S] float32
// ip = {L, H / G, row lengths of x, dt, b, c, first columns of x, dt, b, c}
// fp = {least, greatest dt}   out [N, L, H, P], after as state, both float32
// template TX, TD, TB (of x, of dt, of b and c), P, S, RAW:
//   false: g = exp(dt a)
//   true:  dt = softplus(dt + dt_bias) within its limits, g = exp(-exp(a) dt), y = S C + skip x
// 8 lanes hold a row of the state. Tokens are staged 8 at a time, while the next 8 are loaded.
// grid (128 * ceil(P / 16), H, N), threadgroup 128
  constexpr int LANES = 8;
  constexpr int QUADS = S / (4 * LANES);
  constexpr int ROWS = 128 / LANES;
  constexpr int SIMDS = 4;
  constexpr int CHUNK = 8;
  constexpr int TURNS = CHUNK / SIMDS;
  constexpr int VECTORS = S / 4;
  constexpr int WORDS = (VECTORS + 31) / 32;
  threadgroup float4 spreads[CHUNK * VECTORS];
  threadgroup float4 readers[CHUNK * VECTORS];
  threadgroup float values[CHUNK * ROWS];
  threadgroup float scalars[CHUNK * 4];

  const int tid = int(thread_index_in_threadgroup);
  const int lane = tid % LANES;
  const int simd_lane = int(thread_index_in_simdgroup);
  const int simd = int(simdgroup_index_in_threadgroup);
  const int first_row = int(threadgroup_position_in_grid.x) * ROWS;
  const int row = first_row + tid / LANES;
  const int h = int(threadgroup_position_in_grid.y);
  const int n = int(threadgroup_position_in_grid.z);
  const int num_heads = int(threadgroups_per_grid.y);
  const int length = ip[0];
  const int group = h / ip[1];
  const int x_length = ip[2];
  const int dt_length = ip[3];
  const int b_length = ip[4];
  const int c_length = ip[5];
  const float least = fp[0];
  const float greatest = fp[1];
  const int value_row = first_row + tid % ROWS;
  const bool live = row < P;

  auto from = state + (long(n) * num_heads + h) * P * S + long(live ? row : 0) * S + 4 * lane;
  float s[4 * QUADS];
#pragma unroll
  for (int i = 0; i < QUADS; ++i) {
    mkx_load<4>(from + 4 * LANES * i, s + 4 * i);
  }

  auto x_at = x + long(n) * length * x_length + ip[6] + h * P;
  auto dt_at = dt + long(n) * length * dt_length + ip[7] + h;
  auto b_at = b + long(n) * length * b_length + ip[8] + group * S + 4 * simd_lane;
  auto c_at = c + long(n) * length * c_length + ip[9] + group * S + 4 * simd_lane;
  auto y_at = out + (long(n) * length * num_heads + h) * P;
  const float rate = RAW ? -metal::exp(float(a[h])) : float(a[h]);
  const float shift = RAW ? float(dt_bias[h]) : 0.0f;
  const float direct = RAW ? float(skip[h]) : 0.0f;

  for (int start = -CHUNK; start < length; start += CHUNK) {
    // load the next tokens
    TB next_b[TURNS * WORDS * 4];
    TB next_c[TURNS * WORDS * 4];
    TD next_dt[TURNS];
    TX next_x = TX(0.0f);
#pragma unroll
    for (int j = 0; j < TURNS; ++j) {
      const int t = start + CHUNK + simd + SIMDS * j;
      const bool there = t < length;
      next_dt[j] = there ? dt_at[long(t) * dt_length] : TD(0.0f);
#pragma unroll
      for (int w = 0; w < 4 * WORDS; ++w) {
        const int column = 128 * (w / 4) + w % 4;
        const bool inside = there && 4 * simd_lane + column < S;
        next_b[j * 4 * WORDS + w] = inside ? b_at[long(t) * b_length + column] : TB(0.0f);
        next_c[j * 4 * WORDS + w] = inside ? c_at[long(t) * c_length + column] : TB(0.0f);
      }
    }
    const int value_token = start + CHUNK + tid / ROWS;
    if (value_token < length && value_row < P) {
      next_x = x_at[long(value_token) * x_length + value_row];
    }

    // compute the staged tokens
    const int left = length - start;
    const int count = start < 0 ? 0 : (left < CHUNK ? left : CHUNK);
#pragma unroll 2
    for (int i = 0; i < count; ++i) {
      const float g = scalars[4 * i];
      const float value = values[i * ROWS + tid / LANES];
      const float u = scalars[4 * i + 1] * value;
      float4 read = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int w = 0; w < QUADS; ++w) {
        const float4 reader = readers[i * VECTORS + lane + LANES * w];
        const float4 spread = spreads[i * VECTORS + lane + LANES * w];
        read.x += s[4 * w] * reader.x;
        read.y += s[4 * w + 1] * reader.y;
        read.z += s[4 * w + 2] * reader.z;
        read.w += s[4 * w + 3] * reader.w;
        s[4 * w] = g * s[4 * w] + u * spread.x;
        s[4 * w + 1] = g * s[4 * w + 1] + u * spread.y;
        s[4 * w + 2] = g * s[4 * w + 2] + u * spread.z;
        s[4 * w + 3] = g * s[4 * w + 3] + u * spread.w;
      }
      float sc = (read.x + read.y) + (read.z + read.w);
#pragma unroll
      for (int m = LANES / 2; m > 0; m /= 2) {
        sc += simd_shuffle_xor(sc, m);
      }
      if (lane == 0 && live) {
        const float y = g * sc + u * scalars[4 * i + 2] + direct * value;
        y_at[long(start + i) * num_heads * P + row] = y;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // stage the loaded tokens
#pragma unroll
    for (int j = 0; j < TURNS; ++j) {
      const int i = simd + SIMDS * j;
      float bc = 0.0f;
#pragma unroll
      for (int w = 0; w < 4 * WORDS; ++w) {
        bc += float(next_b[j * 4 * WORDS + w]) * float(next_c[j * 4 * WORDS + w]);
      }
      bc = simd_sum(bc);
      float step = float(next_dt[j]);
      if (RAW) {
        // softplus; the logarithm of a number close to one would lose its digits
        const float z = step + shift;
        const float e = metal::exp(-metal::abs(z));
        const float series = e * (1.0f - e * (0.5f - e * (0.33333333f - 0.25f * e)));
        const float rest = e < 0.02f ? series : metal::log(1.0f + e);
        step = (z > 0.0f ? z : 0.0f) + rest;
        step = step < least ? least : step;
        step = step > greatest ? greatest : step;
      }
#pragma unroll
      for (int w = 0; w < WORDS; ++w) {
        if (simd_lane + 32 * w < VECTORS) {
          const int at = 4 * (j * WORDS + w);
          float4 four;
          four.x = float(next_b[at]);
          four.y = float(next_b[at + 1]);
          four.z = float(next_b[at + 2]);
          four.w = float(next_b[at + 3]);
          spreads[i * VECTORS + simd_lane + 32 * w] = four;
          four.x = float(next_c[at]);
          four.y = float(next_c[at + 1]);
          four.z = float(next_c[at + 2]);
          four.w = float(next_c[at + 3]);
          readers[i * VECTORS + simd_lane + 32 * w] = four;
        }
      }
      if (simd_lane == 0) {
        scalars[4 * i] = metal::exp(step * rate);
        scalars[4 * i + 1] = step;
        scalars[4 * i + 2] = bc;
      }
    }
    values[tid] = float(next_x);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  auto to = after + (long(n) * num_heads + h) * P * S + long(row) * S + 4 * lane;
  if (live) {
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
      mkx_store<4>(to + 4 * LANES * i, s + 4 * i);
    }
  }
