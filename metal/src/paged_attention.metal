// Attention of a tile of queries of one sequence to its pages; partial results, if split.
// q [N, HQ, D]  keys [B, HK, S, D]  values [B, HK, S, DV]  tables [R, W]  rows, positions [N]
// sinks [HQ] f32   prev [1] int32
// fp = {factor on q, bound of the scores, W, window (0: none), N, least rounds of a split},
// the first two make exp2(score) the weight
// out [N, HQ, DV] T; or, if not SINGLE, f32 [N, HQ, splits, DV], stats [N, HQ, splits, 2] f32
// next [1] int32 = prev + 1
// If MAKES, q is [N, PW]: queries QS apart, which the kernel norms and rotates first. If STORES,
// keys and values follow the queries; the threadgroup that reads their page writes them in place.
// turns [N, ROT] float32: cosines, then sines   q_weight, k_weight [D]   v_weight [DV]
// fp continues with {PW, eps of queries, of keys, of values}
// template T, D, DV, S, HK, G (heads a key head), QT (queries a tile), CAUSAL, CAP, SINKS,
//   SINGLE, VEC (elements a lane), LPT (lanes a token), U (tokens in flight in a lane, a
//   power of two up to LPT),
//   GT (pairs of query and head a simdgroup), HS (simdgroups that share their tokens), NSG,
//   MAKES, STORES, QS, ROT (rotated elements, 0 for none), INTER (pairs 2i, 2i + 1),
//   QN, KN, VN (norms: 0 none, 1 unweighted, 2 weighted, 3 weighted by 1 + weight)
// grid (32 * NSG * splits, HK * groups of pairs, tiles), threadgroup (32 * NSG, 1, 1)
  constexpr int TOKENS = 32 / LPT;               // tokens of a simdgroup at once
  constexpr int CHUNK = TOKENS * U;
  constexpr int STRANDS = NSG / HS;              // groups of simdgroups with different tokens
  constexpr int ROUND = CHUNK * STRANDS;
  constexpr int IDS = S % CHUNK == 0 ? 1 : U;    // a chunk within one block needs one id
  constexpr int FIT = 5120 / (NSG * DV);         // pairs whose sums fit threadgroup memory
  constexpr int BATCH = FIT < 1 ? 1 : FIT > GT ? GT : FIT;
  threadgroup float sm_max[NSG * GT];
  threadgroup float sm_sum[NSG * GT];
  threadgroup float sm_out[NSG * BATCH * DV];

  const int lane = int(thread_index_in_simdgroup);
  const int sg = int(simdgroup_index_in_threadgroup);
  const int splits = int(threadgroups_per_grid.x);
  const int split = int(threadgroup_position_in_grid.x);
  const int hk = int(threadgroup_position_in_grid.y) % HK;
  const int first_pair = (int(threadgroup_position_in_grid.y) / HK * HS + sg % HS) * GT;
  const int tile = int(threadgroup_position_in_grid.z);
  const int strand = sg / HS;
  const int token = lane / LPT;
  const int element = lane % LPT * VEC;
  const int own = lane % LPT / (LPT / U);        // the token of a chunk that this lane weighs
  const int k_element = element < D ? element : 0;    // idle lanes repeat the reads of lane 0
  const int v_element = element < DV ? element : 0;

  const int width = int(fp[2]);
  const int window = int(fp[3]);
  const int num_queries = int(fp[4]);
  const int first_query = tile * QT;
  const int position = CAUSAL ? positions[0] + first_query : positions[tile];
  const int end = min(position + min(QT, num_queries - first_query), width * S);
  const int oldest = window > 0 ? max(0, position - window + 1) : 0;

  // each row is split by its own length: a long row fills all splits
  const int aligned = oldest / CHUNK * CHUNK;
  const int rounds = end > aligned ? (end - aligned + ROUND - 1) / ROUND : 0;
  const int share = max((rounds + splits - 1) / splits, int(fp[5]));
  const int from = aligned + split * share * ROUND;
  const int to = min(end, from + share * ROUND);

  float qr[GT * VEC];
  float acc[GT * VEC];
  float most[GT];
  float sum[GT];
  int last[GT];                                  // position of a pair's query
#pragma unroll
  for (int r = 0; r < GT; ++r) {
    const int pair = min(first_pair + r, QT * G - 1);
    const int query = min(pair / G, num_queries - 1 - first_query);
    last[r] = position + query;
    most[r] = -1e30f;                            // finite: differences are never NaN
    sum[r] = 0.0f;
#pragma unroll
    for (int e = 0; e < VEC; ++e) {
      acc[r * VEC + e] = 0.0f;
    }
    if (!MAKES) {
      const long head = (long(first_query) + query) * (HK * G) + hk * G + pair % G;
      mkx_load<VEC>(q + (head * D + k_element), qr + r * VEC);
#pragma unroll
      for (int e = 0; e < VEC; ++e) {
        qr[r * VEC + e] = element < D ? qr[r * VEC + e] * fp[0] : 0.0f;
      }
    }
  }
  if (split == 0 && tile == 0 && int(threadgroup_position_in_grid.y) == 0 && sg == 0 && lane == 0) {
    next[0] = prev[0] + 1;
  }

  constexpr int WORDS = VEC * int(sizeof(T)) / 4;      // of a lane's part of a key or value
  constexpr int APART = (GT & -GT) < LPT / U ? (GT & -GT) : LPT / U;
  constexpr int SPREAD = U * APART;              // lanes that share the scores of a chunk,
  constexpr int OWN = GT / APART;                // each with OWN pairs of one token
  constexpr float SLACK = 8.0f;                  // weights reach 2^SLACK before sums are rescaled
  const int own_pair = lane % LPT / (LPT / SPREAD) % APART * OWN;
  float own_most[OWN];                           // the score that weights are relative to
  float own_sum[OWN];
  int own_last[OWN];
#pragma unroll
  for (int k = 0; k < OWN; ++k) {
    own_most[k] = most[k];
    own_sum[k] = sum[k];
    own_last[k] = last[k];
#pragma unroll
    for (int r = OWN; r < GT; r += OWN) {
      own_last[k] = r == own_pair ? last[r + k] : own_last[k];
    }
  }

  auto table = tables + long(rows[CAUSAL ? 0 : tile]) * width;
  if (MAKES) {
    // Each simdgroup makes the queries that it needs, and either the key or the value. Only the
    // split with the new token needs key and value.
    constexpr int HALF = ROT / 2;
    const bool is_v = sg % 2 == 1;
    const int block = position < 0 ? 0 : table[position / S];
    const bool keeps = sg < 2 && token == 0 && block > 0 && position >= from && position < to;
    const bool turned = element < ROT;
    const bool leads = INTER || element < HALF;
    const int beside = leads ? element + HALF : element - HALF;
    auto row = q + long(tile) * int(fp[6]);
    auto turn = turns + long(tile) * ROT;
    float c[VEC];
    float s[VEC];
    float q_gain[VEC];
    float q_gain_beside[VEC];
#pragma unroll
    for (int e = 0; e < VEC; ++e) {
      c[e] = 1.0f;
      s[e] = 0.0f;
      q_gain[e] = 1.0f;
      q_gain_beside[e] = 1.0f;
    }
    if (turned) {
      if (INTER) {
        mkx_load<VEC / 2>(turn + element / 2, c);
        mkx_load<VEC / 2>(turn + (HALF + element / 2), s);
      } else {
        mkx_load<VEC>(turn + (leads ? element : beside), c);
        mkx_load<VEC>(turn + (leads ? beside : element), s);
      }
    }
    if (QN >= 2) {
      mkx_load<VEC>(q_weight + k_element, q_gain);
      mkx_load<VEC>(q_weight + (turned && !INTER ? beside : k_element), q_gain_beside);
    }
#pragma unroll
    for (int r = 0; r < GT + (STORES ? 1 : 0); ++r) {
      const bool is_q = r < GT;
      const bool turns_here = turned && (is_q || !is_v);
      const int dims = !is_q && is_v ? DV : D;
      const int norm = is_q ? QN : is_v ? VN : KN;
      const int mine = element < dims ? element : 0;
      const int other = turns_here && !INTER ? beside : mine;
      int first = HK * G * QS + (is_v ? HK * D + hk * DV : hk * D);
      if (is_q) {
        first = (hk * G + min(first_pair + r, G - 1)) * QS;
      }
      float x[VEC];
      float z[VEC];
      float gain[VEC];
      float gain_beside[VEC];
      mkx_load<VEC>(row + (first + mine), x);
      mkx_load<VEC>(row + (first + other), z);
#pragma unroll
      for (int e = 0; e < VEC; ++e) {
        gain[e] = is_q ? q_gain[e] : 1.0f;
        gain_beside[e] = is_q ? q_gain_beside[e] : 1.0f;
      }
      if (!is_q && norm >= 2) {
        auto weight = is_v ? v_weight : k_weight;
        mkx_load<VEC>(weight + mine, gain);
        mkx_load<VEC>(weight + other, gain_beside);
      }
      float inverse = 1.0f;
      if (QN > 0 || KN > 0 || VN > 0) {
        float squares = 0.0f;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
          squares += element < dims ? x[e] * x[e] : 0.0f;
        }
#pragma unroll
        for (int step = LPT / 2; step > 0; step /= 2) {
          squares += simd_shuffle_xor(squares, step);
        }
        const float eps = is_q ? fp[7] : is_v ? fp[9] : fp[8];
        inverse = norm > 0 ? metal::precise::rsqrt(squares / float(dims) + eps) : 1.0f;
      }
      const float centre = norm == 3 ? 1.0f : 0.0f;
#pragma unroll
      for (int e = 0; e < VEC; ++e) {
        x[e] *= inverse * (gain[e] + centre);
        z[e] *= inverse * (gain_beside[e] + centre);
      }
      float made[VEC];
#pragma unroll
      for (int e = 0; e < VEC; ++e) {
        const float partner = INTER ? x[e ^ 1] : z[e];
        const bool minus = INTER ? e % 2 == 0 : leads;
        const int at = INTER ? e / 2 : e;
        const float rotated = x[e] * c[at] + (minus ? -partner : partner) * s[at];
        made[e] = turns_here ? rotated : x[e];
      }
      if (is_q) {
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
          const float rounded = float(T(made[e]));       // rounded like a stored query
          qr[(is_q ? r : 0) * VEC + e] = element < D ? rounded * fp[0] : 0.0f;
        }
      } else if (keeps && element < dims) {
        auto pool = is_v ? mkx_mutable(values) : mkx_mutable(keys);
        mkx_store<VEC>(pool + (((long(block) * HK + hk) * S + position % S) * dims + element), made);
      }
    }
    if (STORES) {
      threadgroup_barrier(mem_flags::mem_device);
    }
  }
  const int last_entry = max(to - 1, 0) / S;           // entries after it are undefined
  int base = from + strand * CHUNK;
  int ids[IDS];
#pragma unroll
  for (int i = 0; i < IDS; ++i) {
    // all entries of a row without tokens are undefined
    ids[i] = base < to ? table[min((base + i * TOKENS + token) / S, last_entry)] : 0;
  }
  uint key_words[U * WORDS];
  uint next_values[U * WORDS];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const int t = base + u * TOKENS + token;
    const int at = IDS == 1 ? base % S + u * TOKENS + token : t % S;
    const long place = (long(max(ids[IDS == 1 ? 0 : u], 0)) * HK + hk) * S + at;
    mkx_fetch<VEC>(keys + (place * D + k_element), key_words + u * WORDS);
    mkx_fetch<VEC>(values + (place * DV + v_element), next_values + u * WORDS);
  }
  int block = ids[0];
#pragma unroll
  for (int i = 1; i < IDS; ++i) {
    block = i == own ? ids[i] : block;
  }
#pragma unroll
  for (int i = 0; i < IDS; ++i) {
    ids[i] = table[min((base + ROUND + i * TOKENS + token) / S, last_entry)];
  }
  for (; base < to; base += ROUND) {
    const int t = base + own * TOKENS + token;
    const bool there = block > 0 && t < to && t >= oldest;
    float s[U * GT];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      float kr[VEC];
      mkx_unpack<VEC, T>(key_words + u * WORDS, kr);
#pragma unroll
      for (int r = 0; r < GT; ++r) {
        float x = 0.0f;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
          x += qr[r * VEC + e] * kr[e];
        }
        s[u * GT + r] = x;
      }
    }
    // The next chunk is loaded while this chunk is computed. Its keys reuse the registers of the
    // keys just used: the barrier keeps a compiler from earlier loads into more registers. Loads
    // have no condition, so that all of them are in flight at once. Elements of invisible tokens,
    // in the null block or after the end, are dropped.
    simdgroup_barrier(mem_flags::mem_none);
    uint value_words[U * WORDS];
#pragma unroll
    for (int i = 0; i < U * WORDS; ++i) {
      value_words[i] = next_values[i];
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int t = base + ROUND + u * TOKENS + token;
      const int at = IDS == 1 ? (base + ROUND) % S + u * TOKENS + token : t % S;
      const long place = (long(max(ids[IDS == 1 ? 0 : u], 0)) * HK + hk) * S + at;
      mkx_fetch<VEC>(keys + (place * D + k_element), key_words + u * WORDS);
      mkx_fetch<VEC>(values + (place * DV + v_element), next_values + u * WORDS);
    }
    block = ids[0];
#pragma unroll
    for (int i = 1; i < IDS; ++i) {
      block = i == own ? ids[i] : block;
    }
    // the blocks of the chunk after the next, so that its keys need not wait for ids
#pragma unroll
    for (int i = 0; i < IDS; ++i) {
      const int t = base + 2 * ROUND + i * TOKENS + token;
      ids[i] = table[min(t / S, last_entry)];
    }

    // Sum over the lanes of a token: at each step, each half of the lanes keeps half of the
    // scores, so that at the end a lane has some scores of one token, its own.
#pragma unroll
    for (int n = SPREAD / 2; n > 0; n /= 2) {
      const int step = n * (LPT / SPREAD);
      const bool upper = (lane & step) != 0;
#pragma unroll
      for (int i = 0; i < SPREAD / 2 * OWN; ++i) {
        if (i < n * OWN) {
          const float low = s[i];
          const float high = s[i + n * OWN];
          s[i] = (upper ? high : low) + simd_shuffle_xor(upper ? low : high, step);
        }
      }
    }
#pragma unroll
    for (int step = LPT / SPREAD / 2; step > 0; step /= 2) {
#pragma unroll
      for (int k = 0; k < OWN; ++k) {
        s[k] += simd_shuffle_xor(s[k], step);
      }
    }
    bool rises = false;
#pragma unroll
    for (int k = 0; k < OWN; ++k) {
      bool visible = there;
      if (QT > 1) {
        visible = visible && t <= own_last[k];
        visible = visible && (window == 0 || t > own_last[k] - window);
      }
      float x = s[k];
      if (CAP) {
        x = fp[1] * metal::precise::tanh(x);
      }
      s[k] = visible ? x : -3.0e38f;    // finite: fast::exp2 is undefined for infinities
      rises = rises || s[k] > own_most[k] + SLACK;
    }
    // Weights may be relative to any score close to the greatest one. So most chunks neither
    // search the greatest score nor rescale.
    if (simd_any(rises)) {
      float fades[OWN];
#pragma unroll
      for (int k = 0; k < OWN; ++k) {
        float now = max(own_most[k], s[k]);
#pragma unroll
        for (int step = LPT / 2; step >= LPT / U; step /= 2) {
          now = max(now, simd_shuffle_xor(now, step));
        }
        fades[k] = metal::exp2(own_most[k] - now);
        own_most[k] = now;
        own_sum[k] *= fades[k];
      }
#pragma unroll
      for (int r = 0; r < GT; ++r) {
        const float fade = mkx_shuffle<LPT>(fades[r % OWN], lane, r / OWN * (LPT / SPREAD));
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
          acc[r * VEC + e] *= fade;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < OWN; ++k) {
      s[k] = metal::fast::exp2(s[k] - own_most[k]);
      own_sum[k] += s[k];
    }
    if (simd_any(!there)) {                      // 0 * NaN is NaN
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const bool seen = mkx_shuffle<LPT>(int(there), lane, u * (LPT / U)) != 0;
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
          value_words[u * WORDS + i] = seen ? value_words[u * WORDS + i] : 0u;
        }
      }
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      float vr[VEC];
      mkx_unpack<VEC, T>(value_words + u * WORDS, vr);
#pragma unroll
      for (int r = 0; r < GT; ++r) {
        const int from_lane = (u * APART + r / OWN) * (LPT / SPREAD);
        const float weight = mkx_shuffle<LPT>(s[r % OWN], lane, from_lane);
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
          acc[r * VEC + e] += weight * vr[e];
        }
      }
    }
  }

  // all pairs of the lane's own token
#pragma unroll
  for (int r = 0; r < GT; ++r) {
    const int from_lane = (own * APART + r / OWN) * (LPT / SPREAD);
    most[r] = mkx_shuffle<LPT>(own_most[r % OWN], lane, from_lane);
    sum[r] = mkx_shuffle<LPT>(own_sum[r % OWN], lane, from_lane);
  }

  // add up the lane groups of a simdgroup, then the strands
#pragma unroll
  for (int r = 0; r < GT; ++r) {
    float all = most[r];
#pragma unroll
    for (int step = LPT; step < 32; step *= 2) {
      all = max(all, simd_shuffle_xor(all, step));
    }
    const float fade = metal::exp2(most[r] - all);
    most[r] = all;
    sum[r] *= fade;                              // sums of the lane's own tokens
#pragma unroll
    for (int step = LPT / U; step < 32; step *= 2) {
      sum[r] += simd_shuffle_xor(sum[r], step);
    }
#pragma unroll
    for (int e = 0; e < VEC; ++e) {
      acc[r * VEC + e] *= fade;
#pragma unroll
      for (int step = LPT; step < 32; step *= 2) {
        acc[r * VEC + e] += simd_shuffle_xor(acc[r * VEC + e], step);
      }
    }
    if (lane == 0) {
      sm_max[sg * GT + r] = all;
      sm_sum[sg * GT + r] = sum[r];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (int r = 0; r < GT; ++r) {
    float all = most[r];
    for (int j = 0; j < STRANDS; ++j) {
      all = max(all, float(sm_max[(j * HS + sg % HS) * GT + r]));
    }
    const float fade = metal::exp2(most[r] - all);
#pragma unroll
    for (int e = 0; e < VEC; ++e) {
      acc[r * VEC + e] *= fade;
    }
  }

#pragma unroll
  for (int r0 = 0; r0 < GT; r0 += BATCH) {
#pragma unroll
    for (int r = r0; r < r0 + BATCH; ++r) {
      if (r < GT && token == 0 && element < DV) {
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
          sm_out[(sg * BATCH + r - r0) * DV + element + e] = acc[(r < GT ? r : 0) * VEC + e];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = int(thread_index_in_threadgroup); i < HS * BATCH * DV / 4; i += 32 * NSG) {
      const int d = i % (DV / 4) * 4;
      const int r = r0 + i / (DV / 4) % BATCH;
      const int part = i / (DV / 4) / BATCH;
      const int pair = (int(threadgroup_position_in_grid.y) / HK * HS + part) * GT + r;
      const int query = first_query + pair / G;
      if (r < GT && pair < QT * G && query < num_queries) {
        const int head = hk * G + pair % G;
        const float sink = SINKS && SINGLE ? float(sinks[head]) * 1.4426950408889634f : -1e30f;
        float all = sink;
        for (int j = 0; j < STRANDS; ++j) {
          all = max(all, float(sm_max[(j * HS + part) * GT + r]));
        }
        // the sums of each strand are relative to its own greatest score
        float most_of_strands = -1e30f;
        float total = 0.0f;
        float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int j = 0; j < STRANDS; ++j) {
          const int from_sg = j * HS + part;
          const float m = sm_max[from_sg * GT + r];
          most_of_strands = max(most_of_strands, m);
          total += sm_sum[from_sg * GT + r] * metal::exp2(m - all);
          for (int e = 0; e < 4; ++e) {
            x[e] += sm_out[(from_sg * BATCH + r - r0) * DV + d + e];
          }
        }
        const long to_row = (long(query) * (HK * G) + head) * splits + split;
        if (SINGLE) {
          if (SINKS) {
            total += metal::exp2(sink - all);
          }
          const float factor = total > 0.0f ? metal::exp2(most_of_strands - all) / total : 0.0f;
          for (int e = 0; e < 4; ++e) {
            x[e] *= factor;
          }
          mkx_store<4>(out + (to_row * DV + d), x);
        } else {
          if (d == 0) {
            stats[to_row * 2] = most_of_strands;
            stats[to_row * 2 + 1] = total;
          }
          if (total > 0.0f) {
            mkx_store<4>(out + (to_row * DV + d), x);
          }
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
