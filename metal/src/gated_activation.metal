// out = activation(gate) * up; gate and up are the two halves of each row.
// joined [T, 2 * H]  ip = {T, H}   out [T, H]
// template T, ACT (0: silu, 1: gelu by tanh); grid (H / 4, T, 1)
  const int h = int(thread_position_in_grid.x) * 4;
  const int t = int(thread_position_in_grid.y);
  const int num_tokens = ip[0];
  const int width = ip[1];
  if (h < width && t < num_tokens) {
    auto row = joined + long(t) * 2 * width + h;
    float gate[4];
    float up[4];
    mkx_load<4>(row, gate);
    mkx_load<4>(row + width, up);
    for (int i = 0; i < 4; ++i) {
      const float x = gate[i];
      float y = x / (1.0f + metal::exp(-x));
      if (ACT == 1) {
        const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
        y = 0.5f * x * (1.0f + metal::precise::tanh(inner));
      }
      gate[i] = y * up[i];
    }
    auto to = out + long(t) * width + h;
    mkx_store<4>(to, gate);
  }
