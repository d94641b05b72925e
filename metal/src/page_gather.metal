// Contiguous keys and values of one sequence, copied from its pages.
// keys [B, HK, S, D]  values [B, HK, S, DV]  tables [R, W]  row [1]
// ip = {W, first block, K}   out_keys [HK, K, D]  out_values [HK, K, DV]
// template T, D, DV, S, HK; grid (K * WORDS, HK, 1), WORDS = max(D, DV) / 8
  constexpr int WORDS = (D > DV ? D : DV) / 8;
  const int t = int(thread_position_in_grid.x) / WORDS;
  const int element = int(thread_position_in_grid.x) % WORDS * 8;
  const int hk = int(thread_position_in_grid.y);
  const int num_keys = ip[2];
  if (t < num_keys) {
    const int block = tables[long(row[0]) * ip[0] + ip[1] + t / S];
    const long from = (long(max(block, 0)) * HK + hk) * S + t % S;
    const long to = long(hk) * num_keys + t;
    float k[8];
    float v[8];
    mkx_load<8>(keys + (from * D + (element < D ? element : 0)), k);
    mkx_load<8>(values + (from * DV + (element < DV ? element : 0)), v);
    if (block <= 0) {                            // the null block has no content
      for (int e = 0; e < 8; ++e) {
        k[e] = 0.0f;
        v[e] = 0.0f;
      }
    }
    if (element < D) {
      mkx_store<8>(out_keys + (to * D + element), k);
    }
    if (element < DV) {
      mkx_store<8>(out_values + (to * DV + element), v);
    }
  }
