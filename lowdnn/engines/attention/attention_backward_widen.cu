// attention_backward_widen: converts the fp8 operands of attention's gradients to fp16, exactly, and sets the largest
// magnitudes to 0; the kernels after this one raise them with atomic maxima.
//
// Thread: 8 elements of a row; blockIdx.y: the operand.
// Memory: rows at multiples of 8 elements, and results packed (batch, head, row, element).
// Launch: THREADS threads a block, enough blocks for the largest operand.
// Macros: TYPE (of q, k and v), GRADIENT_TYPE (of d_o): e4m3, e5m2; THREADS.

#include "attention_backward.cuh"

#define OPERANDS 4

struct Operand {
  Heads<const u8> rows;
  f16* to;
  i32 pieces;  // groups of 8 elements of the operand
  Divider pieces_of_row, rows_of_head, heads;
};

struct Params {
  Operand operands[OPERANDS];  // q, k, v, d_o
  Fp8Numbers fp8;
};

template <class T> __device__ __forceinline__ void widen_piece(const u8* from, f16* to) {
  T narrow[8];
  f16 wide[8];
  load<Stream, 8>(narrow, reinterpret_cast<const T*>(from));
#pragma unroll
  for (int i = 0; i < 8; ++i) wide[i] = convert<f16>(narrow[i]);
  store<8>(to, wide);
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const u32 thread = blockIdx.x * THREADS + threadIdx.x;
  if (blockIdx.y == 0 && thread < LARGEST && p.fp8.largest[thread]) *p.fp8.largest[thread] = 0;
  const Operand& operand = p.operands[blockIdx.y];
  if (thread >= operand.pieces) return;
  const u32 row = operand.pieces_of_row.divide(thread), piece = thread - row * operand.pieces_of_row.divisor;
  const u32 heads_before = operand.rows_of_head.divide(row), batch = operand.heads.divide(heads_before);
  const u32 head = heads_before - batch * operand.heads.divisor;
  const u8* const from = operand.rows.at(batch, head, row - heads_before * operand.rows_of_head.divisor) + piece * 8;
  f16* const to = operand.to + i64(thread) * 8;
  if (blockIdx.y == OPERANDS - 1) {
    widen_piece<GRADIENT_TYPE>(from, to);
  } else {
    widen_piece<TYPE>(from, to);
  }
}
