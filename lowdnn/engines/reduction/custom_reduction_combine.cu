// custom_reduction_combine: y[k] = epilogue(partials[0][k] o partials[1][k] o ...), the second launch of a custom
// reduction in slices.
//
// Layouts: partials [slices][outputs] of states; y has any strides over RANK axes, the first launch's kept ones.
// Block: SIDE outputs side by side, PARTS parts of each: a thread combines `part_slices` neighbouring slices of one
// output from left to right, then the parts are combined as a tree of neighbours.
// Shared memory (static): one state for each thread.
// Launch: THREADS threads, ceil(outputs / SIDE) blocks.
// Macros: THREADS PARTS; INDEX: u32 if outputs are below 2^31, otherwise i64.

#include "include/math/division.cuh"
#include "include/math/reduction_operators.cuh"
#include "generated.cuh"
#include "join_parts.cuh"

typedef Reducer::State State;

struct Params {
  i64 outputs;
  i64 slices;
  i64 part_slices;
  Divider axes[Results::RANK];
  Reducer::Args reducer;
  const State* partials;
  Results::Args results;
};

constexpr int SIDE = THREADS / PARTS;

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const int side = threadIdx.x % SIDE, part = threadIdx.x / SIDE;
  const i64 output = i64(blockIdx.x) * SIDE + side;
  const i64 begin = part * p.part_slices;
  const i64 end = begin + p.part_slices < p.slices ? begin + p.part_slices : p.slices;
  const bool exists = output < p.outputs && begin < end;

  State total = Reducer::initial(p.reducer);
  if (exists) {
    total = p.partials[begin * p.outputs + output];
#pragma unroll 4
    for (i64 slice = begin + 1; slice < end; ++slice) {
      total = Reducer::combine(p.reducer, total, p.partials[slice * p.outputs + output]);
    }
  }
  const int parts = int((p.slices + p.part_slices - 1) / p.part_slices);
  total = join_parts<PARTS, SIDE>(p.reducer, total, part, side, parts, true);
  if (!exists || part != 0) return;

  i64 kept[Results::RANK];
  digits<Results::RANK>(p.axes, INDEX(output), kept);
  Results::store(p.results, kept, total);
}
