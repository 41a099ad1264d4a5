// Groups of V neighbouring elements, and their transfer between device memory and registers.
//
// load<WIDTH> and store<WIDTH> transfer V elements in accesses of WIDTH elements, at most 16 bytes each; the address
// must be aligned to one access. WIDTH is a compile-time power of two, reduced to V elements and to 16 bytes.

#pragma once

#include "include/numeric.cuh"

template <class T, int V> struct alignas(sizeof(T) * V) Vector { T v[V]; };

constexpr int access_width(int width, int count, int element_bytes) {
  const int most = 16 / element_bytes < count ? 16 / element_bytes : count;
  return width < most ? width : most;
}

// ---- one access of BYTES bytes --------------------------------------------------------------------------------------

template <int BYTES> struct Word;
template <> struct Word<16> { typedef uint4 Type; };
template <> struct Word<8> { typedef uint2 Type; };
template <> struct Word<4> { typedef u32 Type; };
template <> struct Word<2> { typedef u16 Type; };
template <> struct Word<1> { typedef u8 Type; };

// Loads by the read-only path. A kernel that hardly writes defines READS_ONLY before it includes anything: its reads
// are 1 to 4 % faster if they are not allocated in L1; between writes they would be 4 % slower (measured on an H200).
// They are volatile, since the compiler could otherwise move one before the check that the element exists.
#ifdef READS_ONLY
#define LOAD_ONCE "ld.global.nc.L1::no_allocate."
#else
#define LOAD_ONCE "ld.global.nc."
#endif
__device__ __forceinline__ void load_streaming(uint4& to, const void* from) {
  asm volatile(LOAD_ONCE "v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w) : "l"(from));
}
__device__ __forceinline__ void load_streaming(uint2& to, const void* from) {
  asm volatile(LOAD_ONCE "v2.u32 {%0, %1}, [%2];" : "=r"(to.x), "=r"(to.y) : "l"(from));
}
__device__ __forceinline__ void load_streaming(u32& to, const void* from) {
  asm volatile(LOAD_ONCE "u32 %0, [%1];" : "=r"(to) : "l"(from));
}
__device__ __forceinline__ void load_streaming(u16& to, const void* from) {
  asm volatile(LOAD_ONCE "u16 %0, [%1];" : "=h"(to) : "l"(from));
}
__device__ __forceinline__ void load_streaming(u8& to, const void* from) {
  u32 byte;
  asm volatile(LOAD_ONCE "u8 %0, [%1];" : "=r"(byte) : "l"(from));
  to = u8(byte);
}

// One access to global memory; the compiler may split an assignment into a store for each element.
__device__ __forceinline__ void store_whole(void* to, uint4 word) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
      :: "l"(to), "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w) : "memory");
}
__device__ __forceinline__ void store_whole(void* to, uint2 word) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" :: "l"(to), "r"(word.x), "r"(word.y) : "memory");
}
__device__ __forceinline__ void store_whole(void* to, u32 word) { *reinterpret_cast<u32*>(to) = word; }
__device__ __forceinline__ void store_whole(void* to, u16 word) { *reinterpret_cast<u16*>(to) = word; }
__device__ __forceinline__ void store_whole(void* to, u8 word) { *reinterpret_cast<u8*>(to) = word; }

// One predicated access: the word is unchanged unless `exists`. A condition around a load may become a branch, which no
// later load is moved across.
__device__ __forceinline__ void load_where(bool exists, uint4& to, const void* from) {
  asm("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w) : "l"(from), "r"(u32(exists)));
}
__device__ __forceinline__ void load_where(bool exists, uint2& to, const void* from) {
  asm("{ .reg .pred p; setp.ne.u32 p, %3, 0; @p ld.global.nc.v2.u32 {%0, %1}, [%2]; }"
      : "+r"(to.x), "+r"(to.y) : "l"(from), "r"(u32(exists)));
}
__device__ __forceinline__ void load_where(bool exists, u32& to, const void* from) {
  asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.u32 %0, [%1]; }"
      : "+r"(to) : "l"(from), "r"(u32(exists)));
}
__device__ __forceinline__ void load_where(bool exists, u16& to, const void* from) {
  asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.u16 %0, [%1]; }"
      : "+h"(to) : "l"(from), "r"(u32(exists)));
}
__device__ __forceinline__ void load_where(bool exists, u8& to, const void* from) {
  u32 byte = to;
  asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.u8 %0, [%1]; }"
      : "+r"(byte) : "l"(from), "r"(u32(exists)));
  to = u8(byte);
}

// One access to read-only memory, for which the L2 cache prefetches the 256 bytes around it.
__device__ __forceinline__ void load_in_lines(uint4& to, const void* from) {
  asm("ld.global.nc.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w) : "l"(from));
}
__device__ __forceinline__ void load_in_lines(uint2& to, const void* from) {
  asm("ld.global.nc.L2::256B.v2.u32 {%0, %1}, [%2];" : "=r"(to.x), "=r"(to.y) : "l"(from));
}
__device__ __forceinline__ void load_in_lines(u32& to, const void* from) {
  asm("ld.global.nc.L2::256B.u32 %0, [%1];" : "=r"(to) : "l"(from));
}
__device__ __forceinline__ void load_in_lines(u16& to, const void* from) {
  asm("ld.global.nc.L2::256B.u16 %0, [%1];" : "=h"(to) : "l"(from));
}

// How loads of a tensor are cached.
struct Stream {  // for elements that are read once, and not written by the same kernel
  template <class T, int W> static __device__ __forceinline__ Vector<T, W> load(const T* from) {
    typename Word<sizeof(T) * W>::Type word;
    load_streaming(word, from);
    return *reinterpret_cast<const Vector<T, W>*>(&word);
  }
};
// For an element that several coordinates share and the same kernel does not write: equal loads are merged.
struct Repeated {
  template <class T, int W> static __device__ __forceinline__ Vector<T, W> load(const T* from) {
    const auto word = __ldg(reinterpret_cast<const typename Word<sizeof(T) * W>::Type*>(from));
    return *reinterpret_cast<const Vector<T, W>*>(&word);
  }
};
struct Plain {  // for elements that are read several times, or written by the same kernel
  template <class T, int W> static __device__ __forceinline__ Vector<T, W> load(const T* from) {
    const auto word = *reinterpret_cast<const typename Word<sizeof(T) * W>::Type*>(from);
    return *reinterpret_cast<const Vector<T, W>*>(&word);
  }
};

// ---- V elements -----------------------------------------------------------------------------------------------------

template <class Path, int WIDTH, class T, int V> __device__ __forceinline__ void load(T (&to)[V], const T* from) {
  constexpr int W = access_width(WIDTH, V, sizeof(T));
#pragma unroll
  for (int i = 0; i < V; i += W) {
    const Vector<T, W> part = Path::template load<T, W>(from + i);
#pragma unroll
    for (int j = 0; j < W; ++j) to[i + j] = part.v[j];
  }
}

// Loads V elements if they exist; otherwise `to` is unchanged. Loads take the read-only path, so the kernel must not
// write these elements.
template <int WIDTH, class T, int V>
__device__ __forceinline__ void load_where(bool exists, T (&to)[V], const T* from) {
  constexpr int W = access_width(WIDTH, V, sizeof(T));
  typedef typename Word<sizeof(T) * W>::Type Whole;
#pragma unroll
  for (int i = 0; i < V; i += W) {
    Vector<T, W> part;
#pragma unroll
    for (int j = 0; j < W; ++j) part.v[j] = to[i + j];
    load_where(exists, *reinterpret_cast<Whole*>(&part), from + i);
#pragma unroll
    for (int j = 0; j < W; ++j) to[i + j] = part.v[j];
  }
}

template <int WIDTH, class T, int V> __device__ __forceinline__ void store(T* to, const T (&from)[V]) {
  constexpr int W = access_width(WIDTH, V, sizeof(T));
#pragma unroll
  for (int i = 0; i < V; i += W) {
    Vector<T, W> part;
#pragma unroll
    for (int j = 0; j < W; ++j) part.v[j] = from[i + j];
    typedef typename Word<sizeof(T) * W>::Type Whole;
    store_whole(to + i, *reinterpret_cast<const Whole*>(&part));
  }
}

// Load and store the first `valid` of V elements at distances `stride`; the others become zero bits, or are not
// written.
template <class T, int V>
__device__ __forceinline__ void load_strided(T (&to)[V], const T* from, i64 stride, int valid) {
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = i < valid ? from[i * stride] : T{};
}

template <class T, int V>
__device__ __forceinline__ void store_strided(T* to, const T (&from)[V], i64 stride, int valid) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i < valid) to[i * stride] = from[i];
  }
}

// Load and store V neighbouring elements, in wide accesses if all V are valid.
template <class Path, int WIDTH, class T, int V>
__device__ __forceinline__ void load_row(T (&to)[V], const T* from, int valid) {
  if (valid == V) {
    load<Path, WIDTH>(to, from);
  } else {
    load_strided(to, from, 1, valid);
  }
}

template <int WIDTH, class T, int V>
__device__ __forceinline__ void store_row(T* to, const T (&from)[V], int valid) {
  if (valid == V) {
    store<WIDTH>(to, from);
  } else if constexpr (V > 1) {
    store_strided(to, from, 1, valid);
  }
}

// Loads V neighbouring elements from anywhere in a tensor that is aligned to 16 bytes. It reads whole vectors and
// shifts them into place, if `remaining` elements from the first on reach to the end of one more vector.
template <class Path, class T, int V>
__device__ __forceinline__ void load_anywhere(T (&to)[V], const T* from, i64 remaining) {
  constexpr int WORDS = (sizeof(T) * V + 3) / 4, VECTORS = (WORDS + 3) / 4 + 1;
  if (V == 1 || remaining < V + 16 / int(sizeof(T))) {
    load_strided(to, from, 1, V);
    return;
  }
  static_assert(V == 1 || sizeof(T) * V % 4 == 0, "shifted in words");
  const u64 address = reinterpret_cast<u64>(from);
  const u32* const line = reinterpret_cast<const u32*>(address & ~u64(15));
  u32 words[4 * VECTORS], wanted[WORDS];
#pragma unroll
  for (int i = 0; i < VECTORS; ++i) load<Path, 4>(*reinterpret_cast<u32(*)[4]>(words + 4 * i), line + 4 * i);
#pragma unroll
  for (int i = 0; i + 2 < 4 * VECTORS; ++i) words[i] = address & 8 ? words[i + 2] : words[i];
#pragma unroll
  for (int i = 0; i + 1 < 4 * VECTORS; ++i) words[i] = address & 4 ? words[i + 1] : words[i];
#pragma unroll
  for (int i = 0; i < WORDS; ++i) wanted[i] = __funnelshift_r(words[i], words[i + 1], u32(address) % 4 * 8);
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = reinterpret_cast<const T*>(wanted)[i];
}
