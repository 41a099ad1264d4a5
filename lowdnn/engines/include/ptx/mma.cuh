// mma.sync: D = A * B + D on one warp's tensor core, A 16 x K, B K x 8, D 16 x 8.
//
// Mma<T> is the instruction for operands of type T. K is 32 bytes for every T: 16 fp16 or bf16, 8 TF32, 32 int8.
// Lane l holds, with g = l / 4 and t = l % 4 and 4-byte words of K:
//   a[0] row g, word t   a[1] row g + 8, word t   a[2] row g, word t + 4   a[3] row g + 8, word t + 4
//   b[0] column g, word t   b[1] column g, word t + 4
//   d[0], d[1] row g, columns 2t, 2t + 1   d[2], d[3] row g + 8, columns 2t, 2t + 1
// Source: PTX ISA, "Matrix multiply-accumulate operation using mma instruction", target sm_80.

#pragma once

#include "include/numeric.cuh"

template <class T> struct Mma;

template <> struct Mma<f16> {
  typedef f32 Accumulator;

  // The word in the format that the instruction reads.
  static __device__ __forceinline__ u32 operand(u32 word) { return word; }

  static __device__ __forceinline__ void apply(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <> struct Mma<bf16> {
  typedef f32 Accumulator;

  static __device__ __forceinline__ u32 operand(u32 word) { return word; }

  static __device__ __forceinline__ void apply(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

// fp32 operands are rounded to TF32 (10 fraction bits, ties away from zero); the hardware alone would truncate.
template <> struct Mma<f32> {
  typedef f32 Accumulator;

  static __device__ __forceinline__ u32 operand(u32 word) {
    u32 rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(word)));
    return rounded;
  }

  static __device__ __forceinline__ void apply(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <> struct Mma<i8> {
  typedef i32 Accumulator;

  static __device__ __forceinline__ u32 operand(u32 word) { return word; }

  static __device__ __forceinline__ void apply(i32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};
