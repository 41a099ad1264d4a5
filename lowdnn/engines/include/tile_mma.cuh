// The main loop that every mma.sync engine shares: acc[M, N] = sum over k tiles of A tile * B tile.
//
// A ring of RING shared-memory stages is filled by cp.async, RING - 1 tiles ahead; fragments are read one K step
// ahead of the instruction that uses them. One barrier for each k tile: it publishes the next stage and frees the last.
// Warps lie in a WARP_ROWS x WARP_COLUMNS grid, each with its own part of the accumulator in registers.
//
// A loader fills one operand's stage: `void load(u32 stage_address)` issues this thread's copies of the next k tile and
// moves on to the one after it; past the last tile it fills zeros, so that no stage is ever read before it is written.

#pragma once

#include "include/operand_tile.cuh"

template <class T_, int M_, int N_, int K_, int WARP_ROWS_, int WARP_COLUMNS_, int RING_, bool K_MAJOR_A,
          bool K_MAJOR_B>
struct TileMma {
  typedef T_ T;
  typedef typename Mma<T>::Accumulator Accumulator;
  typedef OperandTile<T, M_, K_, K_MAJOR_A> TileA;
  typedef OperandTile<T, N_, K_, K_MAJOR_B> TileB;
  static constexpr int M = M_, N = N_, K = K_;
  static constexpr int WARP_ROWS = WARP_ROWS_, WARP_COLUMNS = WARP_COLUMNS_, RING = RING_;
  static constexpr int THREADS = WARP_ROWS * WARP_COLUMNS * WARP_SIZE;
  static constexpr int WARP_M = M / WARP_ROWS, WARP_N = N / WARP_COLUMNS;
  static constexpr int BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 16;
  static constexpr int STEPS = K * int(sizeof(T)) / STEP_BYTES;
  static constexpr int STAGE_BYTES = TileA::BYTES + TileB::BYTES;
  static_assert(WARP_M % 32 == 0 && WARP_N % 32 == 0, "a warp's part is a multiple of 32 x 32");
  static_assert(STEPS >= 2 && RING >= 2, "the pipeline reads one step ahead and loads one tile ahead");

  Accumulator accumulator[BLOCKS_M][2 * BLOCKS_N][4];

  template <class LoaderA, class LoaderB>
  __device__ __forceinline__ void run(LoaderA& load_a, LoaderB& load_b, u32 shared, i32 k_tiles) {
    const u32 warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const FragmentReader<T, TileA> reader_a(warp % WARP_ROWS * WARP_M, lane);
    const FragmentReader<T, TileB> reader_b(warp / WARP_ROWS * WARP_N, lane);
    clear();

    // Prologue: the first RING - 1 tiles, one group each.
#pragma unroll
    for (int stage = 0; stage < RING - 1; ++stage) {
      load_a.load(shared + stage * STAGE_BYTES);
      load_b.load(shared + stage * STAGE_BYTES + TileA::BYTES);
      cp_async_commit();
    }
    cp_async_wait<RING - 2>();
    __syncthreads();

    u32 read_stage = shared, write_stage = shared + (RING - 1) * STAGE_BYTES;
    read(reader_a, reader_b, read_stage, 0);

#pragma unroll 1
    for (i32 tile = 0; tile < k_tiles; ++tile) {
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        if (step == STEPS - 1) {
          cp_async_wait<RING - 2>();
          __syncthreads();
          read_stage = next(read_stage, shared);
        }
        read(reader_a, reader_b, read_stage, (step + 1) % STEPS);
        if (step == 0) load_a.load(write_stage);
        if (step == (STEPS > 2 ? 1 : 0)) {
          load_b.load(write_stage + TileA::BYTES);
          cp_async_commit();
          write_stage = next(write_stage, shared);
        }
        multiply(step % 2);
      }
    }
    cp_async_wait<0>();
  }

 private:
  u32 fragment_a[2][BLOCKS_M][4], fragment_b[2][BLOCKS_N][4];  // by the parity of the step

  static __device__ __forceinline__ u32 next(u32 stage, u32 shared) {
    return stage == shared + (RING - 1) * STAGE_BYTES ? shared : stage + STAGE_BYTES;
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * BLOCKS_N; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) accumulator[i][j][e] = 0;
      }
    }
  }

  __device__ __forceinline__ void read(const FragmentReader<T, TileA>& reader_a, const FragmentReader<T, TileB>& reader_b,
                                       u32 stage, int step) {
#pragma unroll
    for (int block = 0; block < BLOCKS_M; ++block) reader_a.read(fragment_a[step % 2][block], stage, block, step);
#pragma unroll
    for (int block = 0; block < BLOCKS_N; ++block) {
      reader_b.read(fragment_b[step % 2][block], stage + TileA::BYTES, block, step);
    }
  }

  __device__ __forceinline__ void multiply(int parity) {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * BLOCKS_N; ++j) {
        const u32(&b)[4] = fragment_b[parity][j / 2];
        Mma<T>::apply(accumulator[i][j], fragment_a[parity][i], b[j % 2], b[j % 2 + 2]);
      }
    }
  }
};
