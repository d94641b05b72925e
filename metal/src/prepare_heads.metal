// Norms and rotates heads, and writes keys and values to their pages; one simdgroup a head.
// projected [T, W]: queries QS apart, then keys, then values
// keys [B, HK, S, D]   values [B, HK, S, DV], both written in place
// tables [R, P]   rows [T]   positions [T]   prev [1], all int32
// turns [T, ROT] float32: cosines, then sines   q_weight, k_weight [D]   v_weight [DV]
// fp = {eps of queries, of keys, of values, T, W, P}
// q [T, HQ, D]   token [1] = prev + 1
// template T, HQ, HK, D, DV, QS, S, ROT (rotated elements, 0 for none), INTER (pairs 2i, 2i + 1),
//   QN, KN, VN (norms: 0 none, 1 unweighted, 2 weighted, 3 weighted by 1 + weight),
//   V (elements of a word: divides all of the above), C (words of a lane)
// grid (32 * simdgroups, 1, 1), 4 simdgroups a threadgroup
  const int lane = int(thread_index_in_simdgroup);
  const int item = int(threadgroup_position_in_grid.x) * 4 + int(simdgroup_index_in_threadgroup);
  const int t = item / (HQ + 2 * HK);
  const int head = item % (HQ + 2 * HK);
  if (item == 0 && lane == 0) {
    token[0] = prev[0] + 1;
  }
  if (t < int(fp[3])) {
    const bool is_q = head < HQ;
    const bool is_v = head >= HQ + HK;
    const int h = is_q ? head : (is_v ? head - HQ - HK : head - HQ);
    const int dims = is_v ? DV : D;
    const int first = is_q ? h * QS : HQ * QS + (is_v ? HK * D + h * DV : h * D);
    const int norm = is_q ? QN : (is_v ? VN : KN);
    const bool rotates = ROT > 0 && !is_v;
    const int half_dims = ROT / 2;
    int block = 0;
    int offset = 0;
    if (!is_q) {
      const int position = int(positions[t]);
      block = int(tables[long(int(rows[t])) * int(fp[5]) + position / S]);
      offset = position % S;
    }
    auto from = projected + long(t) * int(fp[4]) + first;
    auto weight = is_q ? q_weight : (is_v ? v_weight : k_weight);
    auto cosines = turns + long(t) * ROT;
    auto sines = cosines + half_dims;

    float x[C][V];
    float partner[C][V];
    float gain[C][V];
    float partner_gain[C][V];
    float c[C][V];
    float s[C][V];
#pragma unroll
    for (int i = 0; i < C; ++i) {
      const int e = (i * 32 + lane) * V;
      const bool turned = rotates && e < ROT;
      const int other = INTER ? e : (e < half_dims ? e + half_dims : e - half_dims);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        x[i][j] = 0.0f;
        partner[i][j] = 0.0f;
        gain[i][j] = 1.0f;
        partner_gain[i][j] = 1.0f;
        c[i][j] = 1.0f;
        s[i][j] = 0.0f;
      }
      if (e < dims) {
        mkx_load<V>(from + e, x[i]);
        if (norm >= 2) {
          mkx_load<V>(weight + e, gain[i]);
        }
      }
      if (turned && e < dims) {
        if (INTER) {
          mkx_load<V / 2>(cosines + e / 2, c[i]);
          mkx_load<V / 2>(sines + e / 2, s[i]);
        } else {
          const int pair = e < half_dims ? e : e - half_dims;
          mkx_load<V>(cosines + pair, c[i]);
          mkx_load<V>(sines + pair, s[i]);
          mkx_load<V>(from + other, partner[i]);
          if (norm >= 2) {
            mkx_load<V>(weight + other, partner_gain[i]);
          }
        }
      }
    }

    float inverse = 1.0f;
    if (norm > 0) {
      float squares = 0.0f;
#pragma unroll
      for (int i = 0; i < C; ++i) {
#pragma unroll
        for (int j = 0; j < V; ++j) {
          squares += x[i][j] * x[i][j];
        }
      }
      const float eps = is_q ? fp[0] : (is_v ? fp[2] : fp[1]);
      inverse = metal::precise::rsqrt(simd_sum(squares) / float(dims) + eps);
    }
    const float centre = norm == 3 ? 1.0f : 0.0f;

#pragma unroll
    for (int i = 0; i < C; ++i) {
      const int e = (i * 32 + lane) * V;
      float y[V];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        y[j] = x[i][j] * inverse * (gain[i][j] + centre);
      }
      float out[V];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const int beside = V > 1 ? j ^ 1 : j;
        const int k = INTER ? j / 2 : j;
        const bool leads = INTER ? j % 2 == 0 : e < half_dims;
        const float z = INTER ? y[beside] : partner[i][j] * inverse * (partner_gain[i][j] + centre);
        const float turned = y[j] * c[i][k] + (leads ? -z : z) * s[i][k];
        out[j] = rotates && e < ROT ? turned : y[j];
      }
      if (e < dims) {
        if (is_q) {
          mkx_store<V>(q + (long(t) * HQ + h) * D + e, out);
        } else if (block > 0) {
          auto pool = is_v ? mkx_mutable(values) : mkx_mutable(keys);
          mkx_store<V>(pool + ((long(block) * HK + h) * S + offset) * dims + e, out);
        }
      }
    }
  }
