// msl_shim.h - declarations of the Metal shading language for clang's "C++ for OpenCL" front end.
// Address spaces are checked as in Metal: no generic address space, no double, no standard
// library. A kernel is parsed and type-checked with this header, and never runs.
#pragma clang diagnostic ignored "-Wunknown-attributes"
#pragma OPENCL EXTENSION cl_khr_fp16 : enable

#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
#define METAL_FUNC inline __attribute__((__always_inline__))
#define INFINITY __builtin_inff()

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
typedef ulong size_t;
typedef uint uint3 __attribute__((ext_vector_type(3)));
typedef float float4 __attribute__((ext_vector_type(4)));
typedef half float16_t;
// clang converts a float implicitly, Metal does not: mkx_host.h checks such conversions.
typedef __bf16 bfloat16_t;

template <typename To, typename From>
METAL_FUNC To as_type(From x) {
  return __builtin_astype(x, To);
}

namespace metal {
template <typename T, int N>
using vec = T __attribute__((ext_vector_type(N)));

enum class mem_flags { mem_none, mem_device, mem_threadgroup };
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

#define MKX_FOR_TYPE(T)           \
  T simd_sum(T);                  \
  T simd_max(T);                  \
  T simd_min(T);                  \
  T simd_shuffle(T, ushort);      \
  T simd_broadcast(T, ushort);    \
  T simd_shuffle_xor(T, ushort);  \
  T simd_shuffle_down(T, ushort); \
  T simd_shuffle_up(T, ushort);
MKX_FOR_TYPE(float)
MKX_FOR_TYPE(half)
MKX_FOR_TYPE(bfloat16_t)
MKX_FOR_TYPE(int)
MKX_FOR_TYPE(uint)
#undef MKX_FOR_TYPE

// One overload a type, as in Metal's library: max(int, uint) is ambiguous.
#define MKX_FOR_TYPE(T) \
  T max(T, T);          \
  T min(T, T);
MKX_FOR_TYPE(float)
MKX_FOR_TYPE(half)
MKX_FOR_TYPE(bfloat16_t)
MKX_FOR_TYPE(int)
MKX_FOR_TYPE(uint)
MKX_FOR_TYPE(long)
MKX_FOR_TYPE(ulong)
#undef MKX_FOR_TYPE

#define MKX_FUNCTION(name) \
  float name(float);       \
  half name(half);
MKX_FUNCTION(exp)
MKX_FUNCTION(exp2)
MKX_FUNCTION(log)
MKX_FUNCTION(log2)
MKX_FUNCTION(tanh)
MKX_FUNCTION(sqrt)
MKX_FUNCTION(rsqrt)
MKX_FUNCTION(abs)
#undef MKX_FUNCTION
bool simd_any(bool);
float fma(float, float, float);
half fma(half, half, half);

namespace fast {
float exp2(float);
}  // namespace fast

namespace precise {
float exp(float);
float exp2(float);
float log(float);
float log2(float);
float tanh(float);
float sqrt(float);
float rsqrt(float);
}  // namespace precise
}  // namespace metal
using namespace metal;
