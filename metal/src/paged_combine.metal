// The softmax over all splits of a row, from the partial results of the splits.
// parts [N, HQ, splits, DV] f32  stats [N, HQ, splits, 2] f32: greatest score, sum of weights
// sinks [HQ] f32  ip = {splits}   out [N, HQ, DV] T
// template T, DV, SINKS; grid (32 * simdgroups, HQ, N), threadgroup (32 * simdgroups, 1, 1),
// one simdgroup for each 128 elements
  constexpr int BATCH = 8;                       // splits whose loads are in flight at once
  const int lane = int(thread_index_in_simdgroup);
  const int d = int(thread_index_in_threadgroup) * 4;
  const int head = int(threadgroup_position_in_grid.y);
  const long row = long(threadgroup_position_in_grid.z) * int(threadgroups_per_grid.y) + head;
  const int splits = ip[0];
  auto found = stats + row * splits * 2;
  auto from = parts + row * splits * DV;
  const int column = d < DV ? d : 0;

  float most = -1e30f;
  for (int j = lane; j < splits; j += 32) {
    most = max(most, found[2 * j]);
  }
  most = simd_max(most);
  const float sink = SINKS ? sinks[head] * 1.4426950408889634f : -1e30f;
  most = max(most, sink);

  float total = 0.0f;
  float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int first = 0; first < splits; first += 32) {
    const int mine = min(first + lane, splits - 1);
    const float sum = first + lane < splits ? found[2 * mine + 1] : 0.0f;
    const float weight = sum > 0.0f ? metal::exp2(found[2 * mine] - most) : 0.0f;
    total += weight * sum;
    for (int j = first; j < min(first + 32, splits); j += BATCH) {
      float part[BATCH * 4];
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        mkx_load<4>(from + (long(min(j + i, splits - 1)) * DV + column), part + i * 4);
      }
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        const float w = simd_shuffle(weight, j + i - first);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          x[e] += w > 0.0f ? w * part[i * 4 + e] : 0.0f;    // else the split wrote nothing
        }
      }
    }
  }
  total = simd_sum(total);
  if (SINKS) {
    total += metal::exp2(sink - most);
  }
  const float factor = total > 0.0f ? 1.0f / total : 0.0f;
  for (int e = 0; e < 4; ++e) {
    x[e] *= factor;
  }
  if (d < DV) {
    mkx_store<4>(out + (row * DV + d), x);
  }
