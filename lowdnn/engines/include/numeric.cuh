// The number types of lowdnn's kernels, and the conversions between them.
//
// convert<To>(x) follows the rules of lowdnn/dtypes.py and rounds once. It rounds to nearest even. Float to integer
// saturates and turns NaN into 0. Integer to integer saturates. Overflow gives infinity in fp16 and bf16. In fp8 it
// gives the largest finite value, and NaN stays NaN. The type b8 is `x != 0` and reads as 0 or 1. The type e8m0 is a
// power of two from 2^-127 to 2^127, or NaN; it rounds up and saturates on both sides.
//
// f16, bf16, e4m3, e5m2, e8m0 and b8 are storage types: arithmetic is in f32, f64, i32 or i64.

#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

constexpr int WARP_SIZE = 32;

struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct e4m3 { u8 bits; };
struct e5m2 { u8 bits; };
struct e8m0 { u8 bits; };
struct b8 { u8 bits; };

template <class To, class From> __device__ __forceinline__ To convert(From x);

// Compute<T>::Type: the type of arithmetic with a stored T: f32, f64, i32 or i64.
template <class T> struct Compute { typedef i32 Type; };
template <> struct Compute<f16> { typedef f32 Type; };
template <> struct Compute<bf16> { typedef f32 Type; };
template <> struct Compute<e4m3> { typedef f32 Type; };
template <> struct Compute<e5m2> { typedef f32 Type; };
template <> struct Compute<e8m0> { typedef f32 Type; };
template <> struct Compute<f32> { typedef f32 Type; };
template <> struct Compute<f64> { typedef f64 Type; };
template <> struct Compute<u32> { typedef i64 Type; };
template <> struct Compute<i64> { typedef i64 Type; };

// x rounded to Storage, as a To: the result of a write to memory and a read back.
template <class Storage, class To, class From> __device__ __forceinline__ To rounded(From x) {
  return convert<To>(convert<Storage>(x));
}

// ---- storage type to compute type (exact) ---------------------------------------------------------------------------

__device__ __forceinline__ f32 widen(f32 x) { return x; }
__device__ __forceinline__ f64 widen(f64 x) { return x; }
__device__ __forceinline__ i32 widen(i8 x) { return x; }
__device__ __forceinline__ i32 widen(u8 x) { return x; }
__device__ __forceinline__ i32 widen(i16 x) { return x; }
__device__ __forceinline__ i32 widen(u16 x) { return x; }
__device__ __forceinline__ i32 widen(i32 x) { return x; }
__device__ __forceinline__ i64 widen(u32 x) { return x; }
__device__ __forceinline__ i64 widen(i64 x) { return x; }
__device__ __forceinline__ i32 widen(bool x) { return x; }
__device__ __forceinline__ i32 widen(b8 x) { return x.bits != 0; }

// A shift would be two instructions for the upper half of a register.
__device__ __forceinline__ f32 widen(bf16 x) {
  f32 wide;
  asm("mov.b32 %0, {%1, %2};" : "=f"(wide) : "h"(u16(0)), "h"(x.bits));
  return wide;
}

__device__ __forceinline__ f32 widen(f16 x) {
  f32 wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
}

__device__ __forceinline__ f32 widen(e5m2 x) { return widen(f16{u16(x.bits << 8)}); }

// 2^-127 is subnormal in f32.
__device__ __forceinline__ f32 widen(e8m0 x) {
  return __uint_as_float(x.bits == 0 ? 0x00400000 : x.bits == 255 ? 0x7fffffff : u32(x.bits) << 23);
}

__device__ __forceinline__ f32 widen(e4m3 x) {
#if __CUDA_ARCH__ >= 890
  u32 pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(u16(x.bits)));
  return widen(f16{u16(pair)});
#else
  const u32 sign = u32(x.bits & 0x80) << 24;
  const u32 magnitude = x.bits & 0x7f;
  // An fp16 with the same exponent field is smaller by 2^8, as the biases are 15 and 7.
  const f32 value = widen(f16{u16(magnitude << 7)}) * 256.0f;
  return __uint_as_float((magnitude == 0x7f ? 0x7fffffffu : __float_as_uint(value)) | sign);
#endif
}

// ---- compute type to storage type -----------------------------------------------------------------------------------

template <class T> struct Tag {};

// Truncates to f32 and sets the last bit if anything was lost ("round to odd"). A further rounding to at most 22 bits
// then gives the same result as one rounding of the original.
__device__ __forceinline__ f32 sticky(f64 x) {
  const f32 truncated = __double2float_rz(x);
  return f64(truncated) == x || x != x ? truncated : __uint_as_float(__float_as_uint(truncated) | 1);
}
__device__ __forceinline__ f32 sticky(i32 x) {
  const f32 truncated = __int2float_rz(x);
  return i32(truncated) == x ? truncated : __uint_as_float(__float_as_uint(truncated) | 1);
}
__device__ __forceinline__ f32 sticky(i64 x) {
  const f32 truncated = __ll2float_rz(x);
  return i64(truncated) == x ? truncated : __uint_as_float(__float_as_uint(truncated) | 1);
}
__device__ __forceinline__ f32 sticky(f32 x) { return x; }

// The number of COUNT neighbours that exist, if `left` exist from the first of them on. Not min(max()): ptxas 13.0
// combines these with a comparison of the result, and then returns COUNT for 0 as well.
template <int COUNT> __device__ __forceinline__ i32 count_among(i32 left) {
  i32 count = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) count += left > i;
  return count;
}

template <class T> __device__ __forceinline__ T clamped(T x, T lowest, T highest) {
  return x < lowest ? lowest : x > highest ? highest : x;
}

template <class From> __device__ __forceinline__ f32 narrow(Tag<f32>, From x) { return f32(x); }
template <class From> __device__ __forceinline__ f64 narrow(Tag<f64>, From x) { return f64(x); }

__device__ __forceinline__ i32 narrow(Tag<i32>, f32 x) { return x != x ? 0 : __float2int_rn(x); }
__device__ __forceinline__ i32 narrow(Tag<i32>, f64 x) { return x != x ? 0 : __double2int_rn(x); }
__device__ __forceinline__ i32 narrow(Tag<i32>, i32 x) { return x; }
__device__ __forceinline__ i32 narrow(Tag<i32>, i64 x) { return i32(clamped<i64>(x, -0x80000000ll, 0x7fffffffll)); }

__device__ __forceinline__ i64 narrow(Tag<i64>, f32 x) { return x != x ? 0 : __float2ll_rn(x); }
__device__ __forceinline__ i64 narrow(Tag<i64>, f64 x) { return x != x ? 0 : __double2ll_rn(x); }
__device__ __forceinline__ i64 narrow(Tag<i64>, i32 x) { return x; }
__device__ __forceinline__ i64 narrow(Tag<i64>, i64 x) { return x; }

template <class From> __device__ __forceinline__ u32 narrow(Tag<u32>, From x) {
  return u32(clamped<i64>(narrow(Tag<i64>(), x), 0, 0xffffffffll));
}
template <class From> __device__ __forceinline__ i8 narrow(Tag<i8>, From x) {
  return i8(clamped(narrow(Tag<i32>(), x), -128, 127));
}
template <class From> __device__ __forceinline__ u8 narrow(Tag<u8>, From x) {
  return u8(clamped(narrow(Tag<i32>(), x), 0, 255));
}
template <class From> __device__ __forceinline__ i16 narrow(Tag<i16>, From x) {
  return i16(clamped(narrow(Tag<i32>(), x), -32768, 32767));
}
template <class From> __device__ __forceinline__ u16 narrow(Tag<u16>, From x) {
  return u16(clamped(narrow(Tag<i32>(), x), 0, 65535));
}
template <class From> __device__ __forceinline__ bool narrow(Tag<bool>, From x) { return x != From(0); }
template <class From> __device__ __forceinline__ b8 narrow(Tag<b8>, From x) { return b8{u8(x != From(0))}; }

template <class From> __device__ __forceinline__ f16 narrow(Tag<f16>, From x) {
  f16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(sticky(x)));
  return result;
}

template <class From> __device__ __forceinline__ bf16 narrow(Tag<bf16>, From x) {
  bf16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(sticky(x)));
  return result;
}

#if __CUDA_ARCH__ >= 890
template <class From> __device__ __forceinline__ e4m3 narrow(Tag<e4m3>, From x) {
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(sticky(x)));
  return e4m3{u8(pair)};
}
template <class From> __device__ __forceinline__ e5m2 narrow(Tag<e5m2>, From x) {
  u16 pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(sticky(x)));
  return e5m2{u8(pair)};
}
#else
// The bits of the nearest float with EXPONENT and MANTISSA bits; it saturates at the pattern LARGEST.
template <int EXPONENT, int MANTISSA, u32 LARGEST, u32 NOT_A_NUMBER> __device__ __forceinline__ u8 to_fp8(f32 x) {
  constexpr u32 BIAS = (1u << (EXPONENT - 1)) - 1;
  constexpr u32 DROPPED = 23 - MANTISSA;
  constexpr u32 SMALLEST_NORMAL = (128 - BIAS) << 23;
  const u32 sign = (__float_as_uint(x) >> 24) & 0x80;
  const u32 magnitude = __float_as_uint(x) & 0x7fffffff;
  const u32 half_up = magnitude + ((1u << (DROPPED - 1)) - 1) + ((magnitude >> DROPPED) & 1);
  const u32 normal = (half_up >> DROPPED) - ((127 - BIAS) << MANTISSA);
  // 2^(BIAS - 1 + MANTISSA) turns the smallest subnormal into 1.
  const f32 scale = __uint_as_float((127 + BIAS - 1 + MANTISSA) << 23);
  const u32 subnormal = u32(__float2int_rn(__uint_as_float(magnitude) * scale));
  const u32 finite = magnitude >= SMALLEST_NORMAL ? (normal < LARGEST ? normal : LARGEST) : subnormal;
  return u8(sign | (magnitude > 0x7f800000 ? NOT_A_NUMBER : finite));
}

template <class From> __device__ __forceinline__ e4m3 narrow(Tag<e4m3>, From x) {
  return e4m3{to_fp8<4, 3, 0x7e, 0x7f>(sticky(x))};
}
template <class From> __device__ __forceinline__ e5m2 narrow(Tag<e5m2>, From x) {
  return e5m2{to_fp8<5, 2, 0x7b, 0x7e>(sticky(x))};
}
#endif

template <class From> __device__ __forceinline__ e8m0 narrow(Tag<e8m0>, From x) {
  const f32 value = sticky(x);
  const i32 bits = __float_as_int(value);
  const i32 exponent = (bits >> 23) + ((bits & 0x7fffff) != 0);
  return e8m0{u8(value != value ? 255 : bits <= 0x00400000 ? 0 : exponent < 254 ? exponent : 254)};
}

template <class To, class From> __device__ __forceinline__ To convert(From x) { return narrow(Tag<To>(), widen(x)); }
