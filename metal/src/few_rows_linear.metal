// out = x @ weight.T + bias + residual for few rows, or activation(gate) * up of such products;
// with a norm, x / sqrt(mean(x * x) + eps) * gain replaces x. The divisor is the same for a whole
// row, so it is applied to the sums; the squares are summed beside the products.
// x [rows, K]   weight, bias [O, K], [O]; with an activation [2 * O, K], [2 * O]: gates, then ups
// residual [rows, O]   gain [K]   fp = {rows, O, K, eps}   out [rows, O]
// template T, M (most rows), R (outputs of a simdgroup), S (simdgroups that share a sum),
// U (words of 16 bytes of each weight row in flight), G (simdgroups of a threadgroup), BIAS,
// RESIDUAL, ACT (0: none, 1: silu, 2: gelu by tanh), NORM (0: none, 1: by gain, 2: by 1 + gain)
// grid (32 * G * ceil(O / (R * G / S)), 1, 1), threadgroup (32 * G, 1, 1)
// K is a multiple of 8 and G of S; M and R are powers of two, so that P below is at most 32.
//
// Order of a sum: by k within a lane, then lanes in pairs 16, 8, 4, 2 and 1 apart, then shares in
// order. So a result depends on K, S and T, not on M, R, U or the other rows.
  constexpr int N = 16 / int(sizeof(T));   // elements of a word
  constexpr int W = ACT == 0 ? R : 2 * R;   // weight rows of a simdgroup
  constexpr int P = M * W;                 // sums of a simdgroup
  constexpr int STRIDE = 32 * N * S;       // elements between two words of a lane
  threadgroup float shares[G * P];
  threadgroup float square_shares[G * M];

  const int num_rows = int(fp[0]);
  const int num_outputs = int(fp[1]);
  const int num_inputs = int(fp[2]);
  const int lane = int(thread_index_in_simdgroup);
  const int group = int(simdgroup_index_in_threadgroup);
  const int share = group % S;
  const int first = (int(threadgroup_position_in_grid.x) * (G / S) + group / S) * R;

  // rows and outputs past the end are computed as copies of the last, and not stored
  const int base = min(first, num_outputs - 1);
  auto gates = weight + long(base) * num_inputs;
  auto ups = gates + (ACT == 0 ? long(0) : long(num_outputs) * num_inputs);
  int output_at[R];
  int row_at[M];
#pragma unroll
  for (int r = 0; r < R; ++r) {
    output_at[r] = (min(first + r, num_outputs - 1) - base) * num_inputs;
  }
#pragma unroll
  for (int m = 0; m < M; ++m) {
    row_at[m] = min(m, num_rows - 1) * num_inputs;
  }
  float sum[P];
#pragma unroll
  for (int i = 0; i < P; ++i) {
    sum[i] = 0.0f;
  }
  float square[M];
#pragma unroll
  for (int m = 0; m < M; ++m) {
    square[m] = 0.0f;
  }

  int k = (share * 32 + lane) * N;
  for (; k + (U - 1) * STRIDE < num_inputs; k += U * STRIDE) {
    float w[U * W * N];
#pragma unroll
    for (int i = 0; i < U * W; ++i) {
      const int r = i % W;
      mkx_load<N>((r < R ? gates : ups) + (output_at[r % R] + k + i / W * STRIDE), w + i * N);
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      float g[N];
      if (NORM > 0) {
        mkx_load<N>(gain + (k + u * STRIDE), g);
      }
      if (NORM == 2) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          g[i] += 1.0f;
        }
      }
#pragma unroll
      for (int m = 0; m < M; ++m) {
        float v[N];
        mkx_load<N>(x + (row_at[m] + k + u * STRIDE), v);
        if (NORM > 0) {
#pragma unroll
          for (int i = 0; i < N; ++i) {
            square[m] = metal::fma(v[i], v[i], square[m]);
            v[i] *= g[i];
          }
        }
#pragma unroll
        for (int i = 0; i < W * N; ++i) {
          const int at = m * W + i / N;
          sum[at] = metal::fma(v[i % N], w[u * W * N + i], sum[at]);
        }
      }
    }
  }
  // fewer than U words are left: loads stay inside the row, and repeated words count as 0
  if (k < num_inputs) {
    float w[U * W * N];
#pragma unroll
    for (int i = 0; i < U * W; ++i) {
      const int r = i % W;
      const int inside = min(k + i / W * STRIDE, num_inputs - N);
      mkx_load<N>((r < R ? gates : ups) + (output_at[r % R] + inside), w + i * N);
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (k + u * STRIDE < num_inputs) {
        float g[N];
        if (NORM > 0) {
          mkx_load<N>(gain + (k + u * STRIDE), g);
        }
        if (NORM == 2) {
#pragma unroll
          for (int i = 0; i < N; ++i) {
            g[i] += 1.0f;
          }
        }
#pragma unroll
        for (int m = 0; m < M; ++m) {
          float v[N];
          mkx_load<N>(x + (row_at[m] + k + u * STRIDE), v);
          if (NORM > 0) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
              square[m] = metal::fma(v[i], v[i], square[m]);
              v[i] *= g[i];
            }
          }
#pragma unroll
          for (int i = 0; i < W * N; ++i) {
            const int at = m * W + i / N;
            sum[at] = metal::fma(v[i % N], w[u * W * N + i], sum[at]);
          }
        }
      }
    }
  }

  // each step halves the sums in a lane: lane l ends with sum l / (32 / P) and the squares of the
  // row of that sum
#pragma unroll
  for (int halving = 0; halving < 5; ++halving) {
    const int kept = P >> (halving + 1);
    const int apart = 16 >> halving;
    const bool upper = (lane & apart) != 0;
#pragma unroll
    for (int i = 0; i < P / 2; ++i) {
      if (i < kept) {
        const float low = sum[i];
        const float high = sum[i + kept];
        const float other = simd_shuffle_xor(upper ? low : high, ushort(apart));
        sum[i] = (upper ? high : low) + other;
      }
    }
    if (kept == 0) {
      sum[0] += simd_shuffle_xor(sum[0], ushort(apart));
    }
    if (NORM > 0) {
      const int squares = M >> (halving + 1);
#pragma unroll
      for (int m = 0; m < M / 2; ++m) {
        if (m < squares) {
          const float low = square[m];
          const float high = square[m + squares];
          const float other = simd_shuffle_xor(upper ? low : high, ushort(apart));
          square[m] = (upper ? high : low) + other;
        }
      }
      if (squares == 0) {
        square[0] += simd_shuffle_xor(square[0], ushort(apart));
      }
    }
  }
  const int place = lane / (32 / P);
  const bool speaks = lane % (32 / P) == 0;
  const int m = place / W;
  const int r = place % W;
  float total = sum[0];
  float squares = square[0];
  if (S > 1) {
    if (speaks) {
      shares[group * P + place] = total;
    }
    if (NORM > 0 && speaks && r == 0) {
      square_shares[group * M + m] = squares;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total = 0.0f;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      total += shares[(group / S * S + s) * P + place];
    }
    if (NORM > 0) {
      squares = 0.0f;
#pragma unroll
      for (int s = 0; s < S; ++s) {
        squares += square_shares[(group / S * S + s) * M + m];
      }
    }
  }
  if (NORM > 0) {
    total *= metal::precise::rsqrt(squares / float(num_inputs) + fp[3]);
  }

  const int o = first + r % R;
  if (BIAS && o < num_outputs) {
    total += float(bias[r < R ? o : num_outputs + o]);
  }
  if (ACT > 0) {
    const float up = simd_shuffle_down(total, ushort(R * (32 / P)));
    float y = total / (1.0f + metal::exp(-total));
    if (ACT == 2) {
      const float inner = 0.7978845608028654f * (total + 0.044715f * total * total * total);
      y = 0.5f * total * (1.0f + metal::precise::tanh(inner));
    }
    total = y * up;
  }
  if (share == 0 && speaks && r < R && m < num_rows && o < num_outputs) {
    const long at = long(m) * num_outputs + o;
    if (RESIDUAL) {
      total += float(residual[at]);
    }
    out[at] = T(total);
  }
