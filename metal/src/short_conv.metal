// A depthwise causal convolution over L tokens of each row, K taps, and the state after them.
// x [N, L, W]  state [N, K - 1, C]  weight [K, C]  bias [C], read if BIAS
// ip = {L, C, W, start}   out [N, L, C], after as state
// template T (of out and state), K, SILU, BIAS, GATED:
//   false: columns start ... start + C of x are convolved
//   true:  the rows of x hold b, c and x side by side, and out = c * conv(b * x)
// A thread computes 4 channels of up to 4 tokens; grid (ceil(C / 4), ceil(L / 4), N)
  constexpr int TOKENS = 4;
  constexpr int SEEN = TOKENS + K - 1;
  const int channel = int(thread_position_in_grid.x) * 4;
  const int first = int(thread_position_in_grid.y) * TOKENS;
  const int n = int(thread_position_in_grid.z);
  const int length = ip[0];
  const int channels = ip[1];
  const int width = ip[2];
  if (channel < channels && first < length) {
    auto tokens = x + long(n) * length * width + ip[3] + channel;
    auto before = state + long(n) * (K - 1) * channels + channel;
    float seen[4 * SEEN];
    float product[4 * TOKENS];
#pragma unroll
    for (int i = 0; i < SEEN; ++i) {
      const int t = first + i - (K - 1);
      if (t < 0) {
        mkx_load<4>(before + long(t + K - 1) * channels, seen + 4 * i);
      } else if (t < length) {
        mkx_load<4>(tokens + long(t) * width + (GATED ? 2 * channels : 0), seen + 4 * i);
        if (GATED) {
          float gate[4];
          mkx_load<4>(tokens + long(t) * width, gate);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            // rounded like the state
            seen[4 * i + j] = float(T(seen[4 * i + j] * gate[j]));
          }
        }
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          seen[4 * i + j] = 0.0f;
        }
      }
    }

#pragma unroll
    for (int j = 0; j < 4 * TOKENS; ++j) {
      product[j] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < K; ++i) {
      float tap[4];
      mkx_load<4>(weight + i * channels + channel, tap);
#pragma unroll
      for (int j = 0; j < 4 * TOKENS; ++j) {
        product[j] += seen[4 * i + j] * tap[j % 4];
      }
    }
    if (BIAS) {
      float shift[4];
      mkx_load<4>(bias + (BIAS ? channel : 0), shift);
#pragma unroll
      for (int j = 0; j < 4 * TOKENS; ++j) {
        product[j] += shift[j % 4];
      }
    }

    auto to = out + (long(n) * length + first) * channels + channel;
#pragma unroll
    for (int i = 0; i < TOKENS; ++i) {
      if (first + i < length) {
        float y[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float sum = product[4 * i + j];
          y[j] = SILU ? sum / (1.0f + metal::exp(-sum)) : sum;
        }
        if (GATED) {
          float gate[4];
          mkx_load<4>(tokens + long(first + i) * width + channels, gate);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            y[j] *= gate[j];
          }
        }
        mkx_store<4>(to + long(i) * channels, y);
      }
    }

    // the last thread has read all tokens of the new state
    if (first + TOKENS >= length) {
      auto kept = after + long(n) * (K - 1) * channels + channel;
#pragma unroll
      for (int i = 0; i < SEEN; ++i) {
        const int at = first + i - length;
        if (at >= 0 && at < K - 1) {
          mkx_store<4>(kept + long(at) * channels, seen + 4 * i);
        }
      }
    }
  }
