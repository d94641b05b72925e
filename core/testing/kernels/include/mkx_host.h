// mkx_host.h - translates the subset of the Metal shading language to C++ for the host.
//
// Every GPU thread is a fiber (mkx_runtime.cpp); fibers wait for each other at barriers and simd_*.
// With MKX_CHECKED, accesses are checked for bounds and alignment, and threadgroup arrays record
// the threads that accessed each element since the last barrier.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t uchar;
typedef uint16_t ushort;
typedef uint32_t uint;
typedef uint64_t ulong;
struct uint3 {
  uint x, y, z;
};
struct float4 {
  float x, y, z, w;
};
#define INFINITY __builtin_inff()

// ---- types of 16 bits: to float implicitly, from float explicitly, as in Metal ---------------

struct float16_t {
  _Float16 value;
  float16_t() = default;
  explicit float16_t(float x) : value(static_cast<_Float16>(x)) {}
  explicit float16_t(int x) : float16_t(static_cast<float>(x)) {}
  operator float() const { return static_cast<float>(value); }
};

struct bfloat16_t {
  uint16_t bits;
  bfloat16_t() = default;
  explicit bfloat16_t(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    const uint32_t to_nearest_even = 0x7fffu + ((u >> 16) & 1u);
    bits = static_cast<uint16_t>(is_nan ? (u >> 16) | 0x40u : (u + to_nearest_even) >> 16);
  }
  explicit bfloat16_t(int x) : bfloat16_t(static_cast<float>(x)) {}
  operator float() const {
    const uint32_t u = static_cast<uint32_t>(bits) << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
  }
};

typedef float16_t half;
typedef bfloat16_t bfloat;

// ---- functions of the runtime -----------------------------------------------------------------

namespace mkx {

constexpr int SIMD_WIDTH = 32;

// Position of a thread; the names abbreviate Metal's.
struct Ids {
  uint3 tpig, tptg, tgpig, tptgsz, tgpg;
};

struct Launch {
  int grid[3], threadgroup[3];
  int order;       // of threads and threadgroups: 0 forwards, 1 backwards, 2 shuffled
  int cuda_edges;  // whole threadgroups past the grid's end, as CUDA launches them
  uint64_t seed;
};

typedef void (*Body)(const void* context, const Ids& ids);

// Runs a body for every thread. Returns 0, or 1 with a message in `error`.
int run(const Launch& how, Body body, const void* context, char* error, size_t size);

template <typename F>
int launch(const Launch& how, const F& body, char* error, size_t size) {
  const Body call = [](const void* f, const Ids& ids) { (*static_cast<const F*>(f))(ids); };
  return run(how, call, &body, error, size);
}

// Ends the launch with a message.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Exchanges values of the n lanes of a simdgroup.
typedef void (*Combine)(const uint64_t* given, const int* argument, uint64_t* got, int n);

uint64_t meet_simdgroup(const char* name, Combine combine, uint64_t given, int argument, int line);
void meet_threadgroup(int line);

// Threadgroup memory: poisoned at first, shared by all threads that pass the same id.
struct Array {
  int id;
  const char* name;
  size_t size;
  uint8_t* bytes;
  uint64_t *written, *read;  // thread and epoch of the last access: see note()
};
Array* threadgroup_array(int id, const char* name, size_t element_size, size_t size);
void note(Array* array, size_t i, bool writes);

template <typename T>
uint64_t pack(T x) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "simd_* take scalars");
  uint64_t word = 0;
  memcpy(&word, &x, sizeof x);
  return word;
}

template <typename T>
T unpack(uint64_t word) {
  T x;
  memcpy(&x, &word, sizeof x);
  return x;
}

// Adds lanes pairwise until one is left, one of the orders of addition that GPUs may choose.
template <typename T, typename Op>
void reduce(const uint64_t* given, const int*, uint64_t* got, int n) {
  T x[SIMD_WIDTH];
  for (int i = 0; i < n; ++i) x[i] = unpack<T>(given[i]);
  for (int left = n; left > 1; left = (left + 1) / 2)
    for (int i = 0; i < left / 2; ++i) x[i] = Op::apply(x[i], x[i + (left + 1) / 2]);
  for (int i = 0; i < n; ++i) got[i] = pack(x[0]);
}
struct Add {
  template <typename T>
  static T apply(T a, T b) { return a + b; }
};
struct Max {
  template <typename T>
  static T apply(T a, T b) { return a > b ? a : b; }
};
struct Or {
  template <typename T>
  static T apply(T a, T b) { return a || b; }
};
struct Min {
  template <typename T>
  static T apply(T a, T b) { return a < b ? a : b; }
};

enum Shuffle { TO_LANE, XOR, DOWN, UP };

// A lane that reads past the simdgroup keeps its own value, as on CUDA; undefined in Metal.
template <Shuffle HOW>
void shuffle(const uint64_t* given, const int* argument, uint64_t* got, int n) {
  for (int i = 0; i < n; ++i) {
    const int a = argument[i];
    const int from = HOW == TO_LANE ? a : HOW == XOR ? i ^ a : HOW == DOWN ? i + a : i - a;
    got[i] = given[from >= 0 && from < n ? from : i];
  }
}

}  // namespace mkx

// ---- Metal's library --------------------------------------------------------------------------

namespace metal {

enum class mem_flags { mem_none, mem_device, mem_threadgroup };

#define MKX_LINE int line = __builtin_LINE()

inline void threadgroup_barrier(mem_flags, MKX_LINE) { mkx::meet_threadgroup(line); }
inline void simdgroup_barrier(mem_flags, MKX_LINE) {
  mkx::meet_simdgroup("simdgroup_barrier", nullptr, 0, 0, line);
}

#define MKX_REDUCTION(name, Op)                                                        \
  template <typename T>                                                                \
  T name(T x, MKX_LINE) {                                                              \
    const mkx::Combine combine = mkx::reduce<T, mkx::Op>;                              \
    return mkx::unpack<T>(mkx::meet_simdgroup(#name, combine, mkx::pack(x), 0, line)); \
  }
MKX_REDUCTION(simd_sum, Add)
MKX_REDUCTION(simd_max, Max)
MKX_REDUCTION(simd_min, Min)
#undef MKX_REDUCTION
inline bool simd_any(bool x, MKX_LINE) {
  const mkx::Combine combine = mkx::reduce<bool, mkx::Or>;
  return mkx::unpack<bool>(mkx::meet_simdgroup("simd_any", combine, mkx::pack(x), 0, line));
}

#define MKX_SHUFFLE(name, HOW)                                                          \
  template <typename T>                                                                 \
  T name(T x, ushort argument, MKX_LINE) {                                              \
    const mkx::Combine combine = mkx::shuffle<mkx::HOW>;                                \
    const uint64_t given = mkx::pack(x);                                                \
    return mkx::unpack<T>(mkx::meet_simdgroup(#name, combine, given, argument, line));  \
  }
MKX_SHUFFLE(simd_shuffle, TO_LANE)
MKX_SHUFFLE(simd_broadcast, TO_LANE)
MKX_SHUFFLE(simd_shuffle_xor, XOR)
MKX_SHUFFLE(simd_shuffle_down, DOWN)
MKX_SHUFFLE(simd_shuffle_up, UP)
#undef MKX_SHUFFLE
template <int W, typename T>
T mkx_shuffle(T x, int lane, int l, MKX_LINE) {
  return simd_shuffle(x, static_cast<ushort>(lane / W * W + l), line);
}
#undef MKX_LINE

// One overload a type, as in Metal's library: max(int, uint) is ambiguous.
#define MKX_FOR_TYPE(T)                                \
  inline T max(T a, T b) { return a > b ? a : b; }     \
  inline T min(T a, T b) { return a < b ? a : b; }
MKX_FOR_TYPE(int)
MKX_FOR_TYPE(uint)
MKX_FOR_TYPE(int64_t)
MKX_FOR_TYPE(uint64_t)
#undef MKX_FOR_TYPE
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
inline float min(float a, float b) { return __builtin_fminf(a, b); }

inline float exp(float x) { return __builtin_expf(x); }
inline float exp2(float x) { return __builtin_exp2f(x); }
inline float log(float x) { return __builtin_logf(x); }
inline float log2(float x) { return __builtin_log2f(x); }
inline float tanh(float x) { return __builtin_tanhf(x); }
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float abs(float x) { return __builtin_fabsf(x); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

namespace fast {
using metal::exp2;
}  // namespace fast
namespace precise {
using metal::exp;
using metal::exp2;
using metal::log;
using metal::log2;
using metal::rsqrt;
using metal::sqrt;
using metal::tanh;
}  // namespace precise
}  // namespace metal
using namespace metal;

// ---- memory -----------------------------------------------------------------------------------

namespace mkx {
#if defined(MKX_CHECKED)

template <typename T>
struct Pointer {
  T* base;
  int64_t at;
  size_t size;
  const char* name;

  T& operator[](int64_t i) const {
    if (at + i < 0 || static_cast<size_t>(at + i) >= size)
      fail("buffer %s[%lld] out of bounds (size %zu)", name, static_cast<long long>(at + i), size);
    return base[at + i];
  }
  T& operator*() const { return (*this)[0]; }
  Pointer operator+(int64_t d) const { return {base, at + d, size, name}; }
  Pointer operator-(int64_t d) const { return {base, at - d, size, name}; }
  Pointer& operator+=(int64_t d) {
    at += d;
    return *this;
  }
  // A word has N elements, at most 16 bytes.
  void require_aligned(int n) const {
    const uint64_t bytes = n * sizeof(T) > 16 ? 16 : n * sizeof(T);
    const uint64_t word = bytes & (~bytes + 1);
    if (static_cast<uint64_t>(at) * sizeof(T) % word)
      fail("buffer %s[%lld] is not aligned to %d elements", name, static_cast<long long>(at), n);
  }
};

template <typename T>
Pointer<T> wrap(void* memory, size_t size, const char* name) {
  return {static_cast<T*>(memory), 0, size, name};
}

// An element of a threadgroup array that records reads and writes.
template <typename T>
struct Element {
  Array* array;
  size_t i;

  T* address() const { return reinterpret_cast<T*>(array->bytes) + i; }
  operator T() const {
    note(array, i, false);
    return *address();
  }
  Element& operator=(T x) {
    note(array, i, true);
    *address() = x;
    return *this;
  }
  Element& operator=(const Element& other) { return *this = T(other); }
  Element& operator+=(T x) { return *this = T(T(*this) + x); }
  Element& operator-=(T x) { return *this = T(T(*this) - x); }
  Element& operator*=(T x) { return *this = T(T(*this) * x); }
};

template <typename T>
struct ThreadgroupPointer {
  Array* array;
  int64_t at;

  Element<T> operator[](int64_t i) const {
    if (at + i < 0 || static_cast<size_t>(at + i) >= array->size)
      fail("threadgroup %s[%lld] out of bounds (size %zu)", array->name,
           static_cast<long long>(at + i), array->size);
    return {array, static_cast<size_t>(at + i)};
  }
  ThreadgroupPointer operator+(int64_t d) const { return {array, at + d}; }
};

template <typename T>
ThreadgroupPointer<T> threadgroup_memory(int id, size_t size, const char* name) {
  return {threadgroup_array(id, name, sizeof(T), size), 0};
}

#else

template <typename T>
T* wrap(void* memory, size_t, const char*) {
  return static_cast<T*>(memory);
}

template <typename T>
T* threadgroup_memory(int id, size_t size, const char* name) {
  return reinterpret_cast<T*>(threadgroup_array(id, name, sizeof(T), size)->bytes);
}

#endif
}  // namespace mkx

#define MKX_TG(T, name, n) const auto name = mkx::threadgroup_memory<T>(__COUNTER__, (n), #name)

// ---- functions of mkx_metal.h and mkx_cuda.h --------------------------------------------------

#if defined(MKX_CHECKED)
#define MKX_POINTER(T) mkx::Pointer<T>
#define MKX_REQUIRE_ALIGNED(p, n) (p).require_aligned(n)
template <typename T>
mkx::Pointer<T> mkx_mutable(mkx::Pointer<const T> p) {
  return {const_cast<T*>(p.base), p.at, p.size, p.name};
}
#else
#define MKX_POINTER(T) T*
#define MKX_REQUIRE_ALIGNED(p, n)
template <typename T>
T* mkx_mutable(const T* p) {
  return const_cast<T*>(p);
}
#endif

template <int N, typename T>
void mkx_load(MKX_POINTER(T) p, float* r) {
  MKX_REQUIRE_ALIGNED(p, N);
  for (int i = 0; i < N; ++i) r[i] = float(p[i]);
}

template <int N, typename T>
void mkx_store(MKX_POINTER(T) p, const float* r) {
  MKX_REQUIRE_ALIGNED(p, N);
  for (int i = 0; i < N; ++i) p[i] = T(r[i]);
}

template <int N, typename T>
void mkx_fetch(MKX_POINTER(T) p, uint* w) {
  static_assert(N * sizeof(T) % 16 == 0, "whole words of 16 bytes");
  MKX_REQUIRE_ALIGNED(p, N);
  for (int i = 0; i < N; ++i) memcpy(reinterpret_cast<char*>(w) + i * sizeof(T), &p[i], sizeof(T));
}

template <int N, typename T>
void mkx_unpack(const uint* w, float* r) {
  for (int i = 0; i < N; ++i) {
    T x;
    memcpy(&x, reinterpret_cast<const char*>(w) + i * sizeof(T), sizeof x);
    r[i] = float(x);
  }
}

#undef MKX_POINTER
#undef MKX_REQUIRE_ALIGNED

#define device
#define constant
#define thread
