// The gated delta rule over L tokens of each row: S' = g S, u = beta (v - S' k), S = S' + u k^T,
// y = S q = S' q + u (k.q), so that one pass over the old state recalls values for k and q.
// q, k, v, a, b   rows of tokens [N * L, ...]; ip has row lengths and first columns, so that
//                 all of them may be parts of one array
// log_a, dt_bias  [Hv], read if RAW
// state           [N, Hv, DV, DK] float32
// ip = {L, Hv / Hk, row lengths of q, k, v, a, b, first columns of q, k, v, a, b}   fp = {eps}
// out [N, L, Hv, DV], after as state
// template T (of out), TQ, TV, TA (of q and k, of v, of a and b), DK, DV, RAW:
//   false: q, k are normed and scaled, a is the logarithm of g, b is beta
//   true:  the kernel norms q and k (l2) and scales q by DK^-1/2,
//          g = exp(-exp(log_a) softplus(a + dt_bias)), beta = sigmoid(b)
// 8 lanes hold a row of the state. Tokens are staged 8 at a time, while the next 8 are loaded.
// grid (128 * ceil(DV / 16), Hv, N), threadgroup 128
  constexpr int LANES = 8;
  constexpr int QUADS = DK / (4 * LANES);
  constexpr int ROWS = 128 / LANES;
  constexpr int SIMDS = 4;
  constexpr int CHUNK = 8;
  constexpr int TURNS = CHUNK / SIMDS;
  constexpr int VECTORS = DK / 4;
  constexpr int WORDS = (VECTORS + 31) / 32;
  threadgroup float4 keys[CHUNK * VECTORS];
  threadgroup float4 queries[CHUNK * VECTORS];
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
  const int key_head = h / ip[1];
  const int q_length = ip[2];
  const int k_length = ip[3];
  const int v_length = ip[4];
  const int a_length = ip[5];
  const int b_length = ip[6];
  const float eps = fp[0];
  const int value_row = first_row + tid % ROWS;
  const bool live = row < DV;

  auto from = state + (long(n) * num_heads + h) * DV * DK + long(live ? row : 0) * DK + 4 * lane;
  float s[4 * QUADS];
#pragma unroll
  for (int i = 0; i < QUADS; ++i) {
    mkx_load<4>(from + 4 * LANES * i, s + 4 * i);
  }

  auto q_at = q + long(n) * length * q_length + ip[7] + key_head * DK + 4 * simd_lane;
  auto k_at = k + long(n) * length * k_length + ip[8] + key_head * DK + 4 * simd_lane;
  auto v_at = v + long(n) * length * v_length + ip[9] + h * DV;
  auto a_at = a + long(n) * length * a_length + ip[10] + h;
  auto b_at = b + long(n) * length * b_length + ip[11] + h;
  auto y_at = out + (long(n) * length * num_heads + h) * DV;
  const float rate = RAW ? metal::exp(float(log_a[RAW ? h : 0])) : 0.0f;
  const float shift = RAW ? float(dt_bias[RAW ? h : 0]) : 0.0f;

  for (int start = -CHUNK; start < length; start += CHUNK) {
    // load the next tokens
    TQ next_q[TURNS * WORDS * 4];
    TQ next_k[TURNS * WORDS * 4];
    TA next_a[TURNS];
    TA next_b[TURNS];
    TV next_v = TV(0.0f);
#pragma unroll
    for (int j = 0; j < TURNS; ++j) {
      const int t = start + CHUNK + simd + SIMDS * j;
      const bool there = t < length;
      next_a[j] = there ? a_at[long(t) * a_length] : TA(0.0f);
      next_b[j] = there ? b_at[long(t) * b_length] : TA(0.0f);
#pragma unroll
      for (int w = 0; w < 4 * WORDS; ++w) {
        const int column = 128 * (w / 4) + w % 4;
        const bool inside = there && 4 * simd_lane + column < DK;
        next_q[j * 4 * WORDS + w] = inside ? q_at[long(t) * q_length + column] : TQ(0.0f);
        next_k[j * 4 * WORDS + w] = inside ? k_at[long(t) * k_length + column] : TQ(0.0f);
      }
    }
    const int value_token = start + CHUNK + tid / ROWS;
    if (value_token < length && value_row < DV) {
      next_v = v_at[long(value_token) * v_length + value_row];
    }

    // compute the staged tokens
    const int left = length - start;
    const int count = start < 0 ? 0 : (left < CHUNK ? left : CHUNK);
#pragma unroll 2
    for (int c = 0; c < count; ++c) {
      float4 key[QUADS];
      float4 by_key = {0.0f, 0.0f, 0.0f, 0.0f};
      float4 by_query = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < QUADS; ++i) {
        key[i] = keys[c * VECTORS + lane + LANES * i];
        const float4 query = queries[c * VECTORS + lane + LANES * i];
        by_key.x += s[4 * i] * key[i].x;
        by_key.y += s[4 * i + 1] * key[i].y;
        by_key.z += s[4 * i + 2] * key[i].z;
        by_key.w += s[4 * i + 3] * key[i].w;
        by_query.x += s[4 * i] * query.x;
        by_query.y += s[4 * i + 1] * query.y;
        by_query.z += s[4 * i + 2] * query.z;
        by_query.w += s[4 * i + 3] * query.w;
      }
      float sk = (by_key.x + by_key.y) + (by_key.z + by_key.w);
      float sq = (by_query.x + by_query.y) + (by_query.z + by_query.w);
#pragma unroll
      for (int m = LANES / 2; m > 0; m /= 2) {
        sk += simd_shuffle_xor(sk, m);
        sq += simd_shuffle_xor(sq, m);
      }
      const float g = scalars[4 * c];
      const float u = scalars[4 * c + 1] * (values[c * ROWS + tid / LANES] - g * sk);
#pragma unroll
      for (int i = 0; i < QUADS; ++i) {
        s[4 * i] = g * s[4 * i] + u * key[i].x;
        s[4 * i + 1] = g * s[4 * i + 1] + u * key[i].y;
        s[4 * i + 2] = g * s[4 * i + 2] + u * key[i].z;
        s[4 * i + 3] = g * s[4 * i + 3] + u * key[i].w;
      }
      if (lane == 0 && live) {
        y_at[long(start + c) * num_heads * DV + row] = T(g * sq + u * scalars[4 * c + 2]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // stage the loaded tokens
#pragma unroll
    for (int j = 0; j < TURNS; ++j) {
      const int c = simd + SIMDS * j;
      float qq = 0.0f;
      float kk = 0.0f;
      float kq = 0.0f;
#pragma unroll
      for (int w = 0; w < 4 * WORDS; ++w) {
        const float x = float(next_q[j * 4 * WORDS + w]);
        const float y = float(next_k[j * 4 * WORDS + w]);
        qq += x * x;
        kk += y * y;
        kq += x * y;
      }
      float q_scale = 1.0f;
      float k_scale = 1.0f;
      float log_g = float(next_a[j]);
      float beta = float(next_b[j]);
      kq = simd_sum(kq);
      if (RAW) {
        q_scale = metal::rsqrt(simd_sum(qq) + eps) * metal::rsqrt(float(DK));
        k_scale = metal::rsqrt(simd_sum(kk) + eps);
        beta = 1.0f / (1.0f + metal::exp(-beta));
        // softplus; the logarithm of a number close to one would lose its digits
        const float x = log_g + shift;
        const float e = metal::exp(-metal::abs(x));
        const float series = e * (1.0f - e * (0.5f - e * (0.33333333f - 0.25f * e)));
        const float rest = e < 0.02f ? series : metal::log(1.0f + e);
        log_g = -rate * ((x > 0.0f ? x : 0.0f) + rest);
      }
#pragma unroll
      for (int w = 0; w < WORDS; ++w) {
        if (simd_lane + 32 * w < VECTORS) {
          const int at = 4 * (j * WORDS + w);
          float4 x;
          x.x = float(next_q[at]) * q_scale;
          x.y = float(next_q[at + 1]) * q_scale;
          x.z = float(next_q[at + 2]) * q_scale;
          x.w = float(next_q[at + 3]) * q_scale;
          queries[c * VECTORS + simd_lane + 32 * w] = x;
          x.x = float(next_k[at]) * k_scale;
          x.y = float(next_k[at + 1]) * k_scale;
          x.z = float(next_k[at + 2]) * k_scale;
          x.w = float(next_k[at + 3]) * k_scale;
          keys[c * VECTORS + simd_lane + 32 * w] = x;
        }
      }
      if (simd_lane == 0) {
        scalars[4 * c] = metal::exp(log_g);
        scalars[4 * c + 1] = beta;
        scalars[4 * c + 2] = kq * q_scale * k_scale;
      }
    }
    values[tid] = float(next_v);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  auto to = after + (long(n) * num_heads + h) * DV * DK + long(row) * DK + 4 * lane;
  if (live) {
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
      mkx_store<4>(to + 4 * LANES * i, s + 4 * i);
    }
  }
