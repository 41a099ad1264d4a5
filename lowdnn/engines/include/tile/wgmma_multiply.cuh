// The multiplication of a wgmma kernel's tiles: the instruction of TILE_N columns for the macros' data types.
//
// Macros: WGMMA_D, WGMMA_A, WGMMA_B (the types as the instruction's name has them), WGMMA_K (32 bytes of an operand),
// MN_MAJOR_TYPES (whether operands may be MN-major), ACCUMULATOR.

#pragma once

#include "include/ptx/wgmma.cuh"

#if MN_MAJOR_TYPES
DEFINE_WGMMA(wgmma, TILE_N, WGMMA_K, WGMMA_D.WGMMA_A.WGMMA_B)
#elif INTEGER_TYPES
DEFINE_WGMMA_K_MAJOR(wgmma, TILE_N, WGMMA_K, WGMMA_D.WGMMA_A.WGMMA_B, ACCUMULATOR, "+r", "")
#else
DEFINE_WGMMA_K_MAJOR(wgmma, TILE_N, WGMMA_K, WGMMA_D.WGMMA_A.WGMMA_B, ACCUMULATOR, "+f", ", 1, 1")
#endif

// Computes d (+)= A * B from two matrix descriptors.
template <bool A_IS_M_MAJOR, bool B_IS_N_MAJOR> struct Multiply {
  __device__ __forceinline__ void operator()(ACCUMULATOR (&d)[TILE_N / 2], u64 a, u64 b, bool accumulate) const {
#if MN_MAJOR_TYPES
    wgmma<A_IS_M_MAJOR, B_IS_N_MAJOR>(d, a, b, accumulate);
#else
    static_assert(!A_IS_M_MAJOR && !B_IS_N_MAJOR, "these types have K-major operands only");
    wgmma(d, a, b, accumulate);
#endif
  }
};

#if MN_MAJOR_TYPES
DEFINE_WGMMA_A_IN_REGISTERS(wgmma_registers, TILE_N, WGMMA_D.WGMMA_A.WGMMA_B)

// Computes d (+)= A * B with A in registers.
template <bool B_IS_N_MAJOR> struct MultiplyRegisters {
  __device__ __forceinline__ void operator()(f32 (&d)[TILE_N / 2], const u32 (&a)[4], u64 b, bool accumulate) const {
    wgmma_registers<B_IS_N_MAJOR>(d, a, b, accumulate);
  }
};
#endif
