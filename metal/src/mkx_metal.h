// mkx_metal.h - what a kernel body needs beside the Metal shading language it is written in.

// The same buffer, to be written: see docs/kernels.md for what makes that safe.
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
