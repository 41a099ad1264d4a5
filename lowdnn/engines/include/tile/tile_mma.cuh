// The main loop that every mma.sync engine shares: acc[M, N] = sum over k tiles of A tile * B tile.
//
// A ring of RING shared-memory stages is filled by cp.async, RING - 1 tiles ahead; fragments are read one K step ahead
// of the instruction that uses them. One barrier for each k tile publishes the next stage and frees the last. Reads and
// copies are spread between the multiplications, so that neither the tensor pipe nor shared memory waits for a burst.
// Warps lie in a WARP_ROWS x WARP_COLUMNS grid, each with its own part of the accumulator in registers.
//
// A loader fills one operand's stage: `void load(u32 stage_address, int part, int parts)` issues a part of this
// thread's copies of the next k tile; the last part moves on to the tile after it. Past the last tile it fills zeros,
// so that no stage is ever read before it is written, unless the product STOPS there.

#pragma once

#include "include/tile/operand_tile.cuh"

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
  static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0, "a warp's part is a multiple of 16 x 16");
  static_assert(STEPS >= 2 && RING >= 2, "the pipeline reads one step ahead and loads one tile ahead");

  // Whether nothing is copied or read past the last tile. For warps with many multiplications such copies cost less
  // than branches around them; warps with few would have to wait for them.
  static constexpr bool STOPS = WARP_M * WARP_N == 16 * 16;

  Accumulator accumulator[BLOCKS_M][2 * BLOCKS_N][4];

  template <class LoaderA, class LoaderB>
  __device__ __forceinline__ void run(LoaderA& load_a, LoaderB& load_b, u32 shared, i32 k_tiles) {
    const u32 warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const ReaderA reader_a(warp % WARP_ROWS * WARP_M, lane);
    const ReaderB reader_b(warp / WARP_ROWS * WARP_N, lane);
    clear();

    // Prologue: the first RING - 1 tiles, one group each.
#pragma unroll(STOPS ? 1 : RING - 1)
    for (int stage = 0; stage < RING - 1; ++stage) {
      if (!STOPS || stage < max(k_tiles, 1)) {
        load_a.load(shared + stage * STAGE_BYTES, 0, 1);
        load_b.load(shared + stage * STAGE_BYTES + TileA::BYTES, 0, 1);
      }
      cp_async_commit();
    }
    cp_async_wait<RING - 2>();
    __syncthreads();

    u32 read_stage = shared, write_stage = shared + (RING - 1) * STAGE_BYTES;
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i) read_part(reader_a, reader_b, read_stage, 0, i);

#pragma unroll 1
    for (i32 tile = 0; tile < k_tiles; ++tile) {
      const bool reads_on = !STOPS || tile + 1 < k_tiles, copies_on = !STOPS || tile + RING - 1 < k_tiles;
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        // The last step reads the first fragments of the next stage; until then this tile's copies are under way.
        if (step == STEPS - 1) {
          cp_async_commit();
          if (reads_on) {
            cp_async_wait<RING - 2>();
            __syncthreads();
          }
          read_stage = next(read_stage, shared);
          write_stage = next(write_stage, shared);
        }
#pragma unroll
        for (int i = 0; i < BLOCKS_M; ++i) {
          if (step < STEPS - 1 || reads_on) read_part(reader_a, reader_b, read_stage, (step + 1) % STEPS, i);
          if (step < STEPS - 1 && copies_on) {
            load_a.load(write_stage, step * BLOCKS_M + i, (STEPS - 1) * BLOCKS_M);
            load_b.load(write_stage + TileA::BYTES, step * BLOCKS_M + i, (STEPS - 1) * BLOCKS_M);
          }
          multiply_row(step % 2, i);
        }
      }
    }
    cp_async_wait<0>();
  }

 private:
  typedef FragmentReader<T, TileA, Side::A> ReaderA;
  typedef FragmentReader<T, TileB, Side::B> ReaderB;

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

  // Reads part `part` of BLOCKS_M of a step's fragments.
  __device__ __forceinline__ void read_part(const ReaderA& reader_a, const ReaderB& reader_b, u32 stage, int step,
                                            int part) {
    reader_a.read(fragment_a[step % 2][part], stage, part, step);
#pragma unroll
    for (int block = BLOCKS_N * part / BLOCKS_M; block < BLOCKS_N * (part + 1) / BLOCKS_M; ++block) {
      reader_b.read(fragment_b[step % 2][block], stage + TileA::BYTES, block, step);
    }
  }

  // Odd rows go backwards (serpentine order), so that operands in the register cache are reused.
  __device__ __forceinline__ void multiply_row(int parity, int i) {
#pragma unroll
    for (int count = 0; count < 2 * BLOCKS_N; ++count) {
      const int j = i % 2 ? 2 * BLOCKS_N - 1 - count : count;
      const u32(&b)[4] = fragment_b[parity][j / 2];
      Mma<T>::apply(accumulator[i][j], fragment_a[parity][i], b[j % 2 * 2], b[j % 2 * 2 + 1]);
    }
  }
};
