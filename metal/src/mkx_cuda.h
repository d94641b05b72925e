// mkx_cuda.h - translates the subset of the Metal shading language to CUDA C++.
// It follows MLX's own includes, so that the macros do not change them.
#define device
#define constant
#define thread
#define threadgroup __shared__
#define MKX_CUDA 1
#define thread_position_in_threadgroup threadIdx
#define threadgroup_position_in_grid blockIdx
#define threads_per_threadgroup blockDim
#define threadgroups_per_grid gridDim
#define thread_position_in_grid (::mkx::tpig())
#define thread_index_in_threadgroup (::mkx::tid())
#define thread_index_in_simdgroup (::mkx::tid() & 31u)
#define simdgroup_index_in_threadgroup (::mkx::tid() >> 5)
#define simdgroups_per_threadgroup ((blockDim.x * blockDim.y * blockDim.z + 31u) >> 5)
#define threads_per_simdgroup 32u
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
namespace mkx {
__device__ inline unsigned tid() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
__device__ inline uint3 tpig() { return make_uint3(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y, blockIdx.z * blockDim.z + threadIdx.z); }
}
namespace metal {
enum class mem_flags { mem_none, mem_device, mem_threadgroup };
__device__ inline float exp(float x) { return ::expf(x); }
__device__ inline float exp2(float x) { return ::exp2f(x); }
__device__ inline float log(float x) { return ::logf(x); }
__device__ inline float log2(float x) { return ::log2f(x); }
__device__ inline float tanh(float x) { return ::tanhf(x); }
__device__ inline float sqrt(float x) { return ::sqrtf(x); }
__device__ inline float rsqrt(float x) { return ::rsqrtf(x); }
__device__ inline float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
__device__ inline float abs(float x) { return ::fabsf(x); }
namespace fast { __device__ inline float exp2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; } }
namespace precise { using metal::exp; using metal::exp2; using metal::log; using metal::tanh; using metal::sqrt; using metal::rsqrt; }
}
using metal::mem_flags;
__device__ inline void threadgroup_barrier(mem_flags) { __syncthreads(); }
__device__ inline void simdgroup_barrier(mem_flags) { __syncwarp(); }
template <typename T> __device__ inline T simd_shuffle(T x, unsigned short l) { return __shfl_sync(0xffffffffu, x, l); }
template <typename T> __device__ inline T simd_broadcast(T x, unsigned short l) { return __shfl_sync(0xffffffffu, x, l); }
template <typename T> __device__ inline T simd_shuffle_xor(T x, unsigned short m) { return __shfl_xor_sync(0xffffffffu, x, m); }
template <typename T> __device__ inline T simd_shuffle_down(T x, unsigned short d) { return __shfl_down_sync(0xffffffffu, x, d); }
template <typename T> __device__ inline T simd_shuffle_up(T x, unsigned short d) { return __shfl_up_sync(0xffffffffu, x, d); }
template <typename T> __device__ inline T simd_sum(T x) { for (int m = 16; m; m >>= 1) x += __shfl_xor_sync(0xffffffffu, x, m); return x; }
template <typename T> __device__ inline T simd_max(T x) { for (int m = 16; m; m >>= 1) { T y = __shfl_xor_sync(0xffffffffu, x, m); x = y > x ? y : x; } return x; }
template <typename T> __device__ inline T simd_min(T x) { for (int m = 16; m; m >>= 1) { T y = __shfl_xor_sync(0xffffffffu, x, m); x = y < x ? y : x; } return x; }
__device__ inline bool simd_any(bool x) { return __any_sync(0xffffffffu, x); }
template <int W, typename T> __device__ inline T mkx_shuffle(T x, int, int l) { return __shfl_sync(0xffffffffu, x, l, W); }
template <typename T> __device__ inline T* mkx_mutable(const T* p) { return const_cast<T*>(p); }

// Words of up to 16 bytes; each is one memory transaction of a thread.
namespace mkx {
template <int BYTES> struct word { typedef unsigned char type; };
template <> struct word<16> { typedef uint4 type; };
template <> struct word<8> { typedef uint2 type; };
template <> struct word<4> { typedef unsigned type; };
template <> struct word<2> { typedef unsigned short type; };
__device__ constexpr int word_bytes(int n) { return n % 16 == 0 ? 16 : n % 8 == 0 ? 8 : n % 4 == 0 ? 4 : n % 2 == 0 ? 2 : 1; }
}
template <int N, typename T> __device__ inline void mkx_load(const T* p, float* r) {
  constexpr int BYTES = mkx::word_bytes(N * int(sizeof(T)));
  constexpr int EACH = BYTES / int(sizeof(T));
  typedef typename mkx::word<BYTES>::type word;
#pragma unroll
  for (int i = 0; i < N / EACH; ++i) {
    const word w = reinterpret_cast<const word*>(p)[i];
    const T* e = reinterpret_cast<const T*>(&w);
#pragma unroll
    for (int j = 0; j < EACH; ++j) r[i * EACH + j] = float(e[j]);
  }
}
template <int N, typename T> __device__ inline void mkx_store(T* p, const float* r) {
  constexpr int BYTES = mkx::word_bytes(N * int(sizeof(T)));
  constexpr int EACH = BYTES / int(sizeof(T));
  typedef typename mkx::word<BYTES>::type word;
#pragma unroll
  for (int i = 0; i < N / EACH; ++i) {
    word w;
    T* e = reinterpret_cast<T*>(&w);
#pragma unroll
    for (int j = 0; j < EACH; ++j) e[j] = T(r[i * EACH + j]);
    reinterpret_cast<word*>(p)[i] = w;
  }
}

// Elements as raw words, loaded early and converted late.
template <int N, typename T> __device__ inline void mkx_fetch(const T* p, uint* w) {
  static_assert(N * sizeof(T) % 16 == 0, "whole words of 16 bytes");
#pragma unroll
  for (int i = 0; i < N * int(sizeof(T)) / 16; ++i) {
    const uint4 x = reinterpret_cast<const uint4*>(p)[i];
    w[4 * i] = x.x;
    w[4 * i + 1] = x.y;
    w[4 * i + 2] = x.z;
    w[4 * i + 3] = x.w;
  }
}
namespace mkx {
template <typename T> struct packed {
  static constexpr int EACH = 4 / int(sizeof(T));
  __device__ static float at(uint w, int i) { return float(reinterpret_cast<const T*>(&w)[i]); }
};
// bfloat16 is the upper half of a float: one instruction an element, a conversion takes 1.5
template <> struct packed<__nv_bfloat16> {
  static constexpr int EACH = 2;
  __device__ static float at(uint w, int i) { return __uint_as_float(i ? w & 0xffff0000u : w << 16); }
};
}
template <int N, typename T> __device__ inline void mkx_unpack(const uint* w, float* r) {
  constexpr int EACH = mkx::packed<T>::EACH;
#pragma unroll
  for (int i = 0; i < N; ++i) r[i] = mkx::packed<T>::at(w[i / EACH], i % EACH);
}
