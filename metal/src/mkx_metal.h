// mkx_metal.h - functions for kernel bodies beside the Metal shading language.

// The same buffer, writable; docs/kernels.md has the rules that make writes safe.
template <typename T>
METAL_FUNC device T* mkx_mutable(const device T* p) {
  return const_cast<device T*>(p);
}

// N consecutive elements to float32. p is aligned to N elements, at most 16 bytes.
template <int N, typename T>
METAL_FUNC void mkx_load(const device T* p, thread float* r) {
  if (N % 4 == 0) {
    for (int i = 0; i < N / 4; ++i) {
      metal::vec<T, 4> v = reinterpret_cast<const device metal::vec<T, 4>*>(p)[i];
      for (int j = 0; j < 4; ++j) {
        r[4 * i + j] = float(v[j]);
      }
    }
  } else {
    for (int i = 0; i < N; ++i) {
      r[i] = float(p[i]);
    }
  }
}

// N consecutive elements from float32, rounded once. p is aligned as for mkx_load.
template <int N, typename T>
METAL_FUNC void mkx_store(device T* p, const thread float* r) {
  if (N % 4 == 0) {
    for (int i = 0; i < N / 4; ++i) {
      metal::vec<T, 4> v;
      for (int j = 0; j < 4; ++j) {
        v[j] = T(r[4 * i + j]);
      }
      reinterpret_cast<device metal::vec<T, 4>*>(p)[i] = v;
    }
  } else {
    for (int i = 0; i < N; ++i) {
      p[i] = T(r[i]);
    }
  }
}

// N consecutive elements as raw words, a multiple of 16 bytes. p is aligned to 16 bytes.
template <int N, typename T>
METAL_FUNC void mkx_fetch(const device T* p, thread uint* w) {
  for (int i = 0; i < N * int(sizeof(T)) / 16; ++i) {
    metal::vec<uint, 4> v = reinterpret_cast<const device metal::vec<uint, 4>*>(p)[i];
    for (int j = 0; j < 4; ++j) {
      w[4 * i + j] = v[j];
    }
  }
}

// N elements loaded by mkx_fetch, to float32.
template <int N, typename T>
METAL_FUNC void mkx_unpack(const thread uint* w, thread float* r) {
  constexpr int EACH = 8 / int(sizeof(T));
  for (int i = 0; i < N / EACH; ++i) {
    metal::vec<uint, 2> bits;
    bits[0] = w[2 * i];
    bits[1] = w[2 * i + 1];
    metal::vec<T, EACH> v = as_type<metal::vec<T, EACH>>(bits);
    for (int j = 0; j < EACH; ++j) {
      r[EACH * i + j] = float(v[j]);
    }
  }
}

// x of lane i among the W lanes that include this lane; W is a power of two.
template <int W, typename T>
METAL_FUNC T mkx_shuffle(T x, int lane, int i) {
  return metal::simd_shuffle(x, ushort(lane / W * W + i));
}
