// ldmatrix and stmatrix: four 8 x 8 matrices of 16-bit elements between shared memory and one register each.
//
// Lane l gives the shared-memory address of 16 bytes: row l % 8 of matrix l / 8. From each matrix it gets row l / 4,
// bytes 4 * (l % 4) to + 3; transposed: column l / 4, elements 2 * (l % 4) and the next one down that column.
// Source: PTX ISA, ldmatrix, target sm_75; stmatrix, target sm_90.

#pragma once

#include "include/numeric.cuh"

__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], u32 shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_transposed(u32 (&r)[4], u32 shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address)
               : "memory");
}

__device__ __forceinline__ void stmatrix_x4(u32 shared_address, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :: "r"(shared_address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
