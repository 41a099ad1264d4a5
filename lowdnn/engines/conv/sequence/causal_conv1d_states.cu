// causal_conv1d_states: the last taps - 1 samples of each sequence, of those before it too where it is shorter,
//
//     final[n, d, s] = x[b, d, end - (taps - 1) + s], or the states before sequence n, or 0
//
// Layouts: any strides. `final` may be the memory of the states before the sequences.
// Thread: one channel of one sequence. It writes in ascending order what lies at least as high, so it reads all states
// before it overwrites them.
// Shared memory: none.
// Launch: THREADS threads; ceil(sequences * channels / THREADS) blocks.
// Macros: X COMPUTE (types) INDEX SEQUENCES HAS_STATES THREADS LANES CHANNELS ALONG_CHANNELS.

#include "sequence_bounds.cuh"

struct Params {
  const X* x;
  X* final;
  Sequences sequences;
  Strides x_strides, final_strides;
  Divider channels;
  i32 count, states;  // count: sequences times channels.  states: taps - 1
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const u32 number = blockIdx.x * THREADS + threadIdx.x;
  if (number >= u32(p.count)) return;
  const u32 sequence = p.channels.divide(number), channel = number - sequence * p.channels.divisor;
  i32 begin, end;
  p.sequences.range(sequence, begin, end);
  end = max(begin, end);
  const X* const x = p.x + (HAS_OFFSETS ? 0 : sequence) * p.x_strides.batch + channel * p.x_strides.channel;
  X* const final = p.final + sequence * p.final_strides.batch + channel * p.final_strides.channel;
  for (i32 s = 0; s < p.states; ++s) {
    const i32 position = end - p.states + s;
    final[s * p.final_strides.position] = position >= begin
        ? x[position * p.x_strides.position]
        : p.sequences.state(sequence, channel, position - begin + p.states);
  }
}
