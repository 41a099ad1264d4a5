// causal_conv1d_states: the last taps - 1 samples of each sequence, of those before it too where it is shorter,
//
//     final[n, d, s] = x[b, d, end - (taps - 1) + s], or the states before sequence n, or 0
//
// Layouts: any strides. `final` may be the memory of the states before the sequences.
// Thread: one channel of one sequence. It writes in ascending order what lies at least as high, so it reads all states
// before it overwrites them. Where several sequences have one slot of a pool, the last one's states stay.
// Shared memory: none.
// Launch: THREADS threads; ceil(sequences * channels / THREADS) blocks.
// Macros: X COMPUTE (types) INDEX SEQUENCES HAS_STATES SLOT HAS_SLOTS THREADS LANES CHANNELS ALONG_CHANNELS.

#include "sequence_bounds.cuh"

struct Params {
  const X* x;
  X* final;
  Sequences sequences;
  Strides x_strides, final_strides;
  Divider channels;
  i32 count, states;  // count: sequences times channels.  states: taps - 1
};

// Whether a sequence has a slot that no later one has. Neighbouring threads have the same sequence or the next one, and
// a warp looks at the slots of all later sequences together.
__device__ __forceinline__ bool has_last_of_slot(const Sequences& sequences, u32 sequence) {
  const u32 first = __shfl_sync(~0u, sequence, 0), last = __shfl_sync(~0u, sequence, 31);
  bool result = false;
  for (u32 number = first; number <= last; ++number) {
    const i64 slot = sequences.slot(number);
    bool is_found = false;
    for (u32 other = number + 1 + threadIdx.x % 32; other < u32(sequences.count); other += 32) {
      is_found = is_found || sequences.slot(other) == slot;
    }
    const bool is_last = !__any_sync(~0u, is_found);
    if (number == sequence) result = slot >= 0 && is_last;
  }
  return result;
}

// Eight blocks on a multiprocessor: for more of them ptxas spills registers.
extern "C" __global__ void __launch_bounds__(THREADS, 8) KERNEL_NAME(const __grid_constant__ Params p) {
  const u32 number = blockIdx.x * THREADS + threadIdx.x;
  const u32 row = min(number, u32(p.count) - 1);
  const u32 sequence = p.channels.divide(row), channel = row - sequence * p.channels.divisor;
  if (HAS_SLOTS && !has_last_of_slot(p.sequences, sequence)) return;
  if (number >= u32(p.count)) return;
  i32 begin, end;
  p.sequences.range(sequence, begin, end);
  end = max(begin, end);
  const X* const x = p.x + (HAS_OFFSETS ? 0 : sequence) * p.x_strides.batch + channel * p.x_strides.channel;
  X* const final = p.final + p.sequences.slot(sequence) * p.final_strides.batch + channel * p.final_strides.channel;
  for (i32 s = 0; s < p.states; ++s) {
    const i32 position = end - p.states + s;
    final[s * p.final_strides.position] = position >= begin
        ? x[position * p.x_strides.position]
        : p.sequences.state(sequence, channel, position - begin + p.states);
  }
}
