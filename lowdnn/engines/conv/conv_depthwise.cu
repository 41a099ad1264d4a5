// Depthwise convolution forward: every output channel k has one input channel, k / multiplier.
//
//   y[n, k, o] = epilogue(sum over r of x[n, k / multiplier, o * stride + r * dilation - pad] * w[k, r])
//
// A thread owns CHANNELS neighbouring channels of STRIP neighbouring outputs along the last spatial axis. With
// CHANNELS > 1 y's vector axis is the channels (channels-last), with CHANNELS = 1 it is the last spatial axis. Where
// the filter's last extent TAPS, the last stride STEP and a last dilation of 1 are compile-time values, an element of x
// is read once for all outputs of the strip that need it; otherwise (TAPS = 0) once for each tap.
//
// A CTA has LANES channel groups and THREADS / LANES strips side by side, and `repeats` such sets of strips one after
// the other, so that its weights are fetched once. Strips are numbered over (n, o, strip), CTAs
// (set of strips) * channel blocks + channel block in the grid's x. x, w, y have any strides; a flipped filter comes
// with negative tap strides and the last tap's address.
//
// Shared memory (dynamic): weights[tap][LANES * CHANNELS] of the accumulator's type.
// Launch: grid.x = strip blocks * channel blocks, block.x = THREADS, dynamic shared memory as above.
//
// Macros: X_TYPE W_TYPE SPATIAL (1 to 3) CHANNELS STRIP (4) LANES THREADS TAPS STEP; X_WIDTH: channels of x in one
// access (1 where they are not contiguous, not aligned or multiplied).
#include "include/numeric.cuh"
#include "include/vector.cuh"
#include "generated.cuh"

using Accumulator = Functor::Accumulator;

constexpr int LAST = SPATIAL - 1;
constexpr int BLOCK_CHANNELS = LANES * CHANNELS;
constexpr int SLOTS = THREADS / LANES;

struct Params {
    const X_TYPE* x;
    const W_TYPE* w;  // of tap 0, which is the last one in memory where the filter is flipped
    i64 x_strides[SPATIAL + 2];  // of n, c, spatial axes
    i64 w_strides[SPATIAL + 1];  // of k, taps
    i32 x_extents[SPATIAL];
    i32 y_extents[SPATIAL];
    i32 taps[SPATIAL];
    i32 strides[SPATIAL];
    i32 dilations[SPATIAL];
    i32 paddings[SPATIAL];  // before the first element
    i32 filters;            // channels of y
    i32 multiplier;
    i32 tap_count;
    i32 strip_count;  // of the whole tensor
    i32 row_strips;   // of one row along the last axis
    i32 channel_blocks;
    i32 repeats;
    Functor::Args epilogue;
};

// Where a strip's outputs lie: image, position of the first one, and that position's origin in x.
struct Strip {
    i32 image;
    i32 position[SPATIAL];
    i32 origin[SPATIAL];

    __device__ Strip(const Params& p, u32 number) {
        position[LAST] = number % p.row_strips * STRIP;
        number /= p.row_strips;
#pragma unroll
        for (int s = LAST - 1; s >= 0; --s) {
            position[s] = number % p.y_extents[s];
            number /= p.y_extents[s];
        }
        image = number;
#pragma unroll
        for (int s = 0; s < SPATIAL; ++s) origin[s] = position[s] * p.strides[s] - p.paddings[s];
    }
};

struct Channels {
    i32 first;  // in y
    i32 valid;  // of CHANNELS, may be negative
};

// CHANNELS elements of x at one position; `at` points to the first channel's element of the image and position.
static __device__ void read_channels(const Params& p, const X_TYPE* at, const Channels& channels,
                                     Accumulator (&values)[CHANNELS]) {
    if (X_WIDTH > 1 && channels.valid >= CHANNELS) {
        X_TYPE elements[CHANNELS];
        load<Plain, X_WIDTH>(elements, at + channels.first);
#pragma unroll
        for (int v = 0; v < CHANNELS; ++v) values[v] = convert<Accumulator>(elements[v]);
        return;
    }
#pragma unroll
    for (int v = 0; v < CHANNELS; ++v) {
        const i64 channel = (channels.first + v) / p.multiplier;
        values[v] = v < channels.valid ? convert<Accumulator>(at[channel * p.x_strides[1]]) : Accumulator(0);
    }
}

static __device__ void read_weights(const Accumulator* from, Accumulator (&values)[CHANNELS]) {
#pragma unroll
    for (int v = 0; v < CHANNELS; ++v) values[v] = from[v];
}

static __device__ void multiply_add(Accumulator (&sum)[CHANNELS], const Accumulator (&x)[CHANNELS],
                                    const Accumulator (&w)[CHANNELS]) {
#pragma unroll
    for (int v = 0; v < CHANNELS; ++v) sum[v] += x[v] * w[v];
}

// Adds the taps of one filter row; `row` points to position 0 of x's row, `weights` to the row's first tap.
template <int ROW_TAPS>
static __device__ void add_row(const Params& p, const X_TYPE* row, const Strip& strip, const Channels& channels,
                               const Accumulator* weights, Accumulator (&sums)[STRIP][CHANNELS]) {
    const i64 step = p.x_strides[2 + LAST];
    const u32 extent = p.x_extents[LAST];
    if constexpr (ROW_TAPS > 0) {
        Accumulator w[ROW_TAPS][CHANNELS];
#pragma unroll
        for (int t = 0; t < ROW_TAPS; ++t) read_weights(weights + t * BLOCK_CHANNELS, w[t]);
#pragma unroll
        for (int j = 0; j < (STRIP - 1) * STEP + ROW_TAPS; ++j) {
            const i32 position = strip.origin[LAST] + j;
            if (static_cast<u32>(position) >= extent) continue;
            Accumulator x[CHANNELS];
            read_channels(p, row + position * step, channels, x);
#pragma unroll
            for (int o = 0; o < STRIP; ++o) {
                const int t = j - o * STEP;
                if (t >= 0 && t < ROW_TAPS) multiply_add(sums[o], x, w[t]);
            }
        }
    } else {
        for (int t = 0; t < p.taps[LAST]; ++t) {
            Accumulator w[CHANNELS];
            read_weights(weights + t * BLOCK_CHANNELS, w);
#pragma unroll
            for (int o = 0; o < STRIP; ++o) {
                const i32 position = strip.origin[LAST] + o * p.strides[LAST] + t * p.dilations[LAST];
                if (static_cast<u32>(position) >= extent) continue;
                Accumulator x[CHANNELS];
                read_channels(p, row + position * step, channels, x);
                multiply_add(sums[o], x, w);
            }
        }
    }
}

// Hands a strip's sums to the epilogue.
static __device__ void finish(const Params& p, const Strip& strip, const Channels& channels,
                              Accumulator (&sums)[STRIP][CHANNELS]) {
    i64 coordinate[SPATIAL + 2] = {strip.image, channels.first};
#pragma unroll
    for (int s = 0; s < SPATIAL; ++s) coordinate[2 + s] = strip.position[s];
    const int outputs = min(p.y_extents[LAST] - strip.position[LAST], STRIP);
    if constexpr (CHANNELS == 1) {
        Accumulator run[STRIP];
#pragma unroll
        for (int o = 0; o < STRIP; ++o) run[o] = sums[o][0];
        const Functor::Cursor cursor = Functor::cursor(p.epilogue, coordinate);
        Functor::apply<STRIP>(p.epilogue, cursor, strip.position[LAST], outputs, run);
    } else {
        // Rolled, with the outputs rotating through the first one's registers: one instance of the epilogue.
#pragma unroll 1
        for (int o = 0; o < outputs; ++o) {
            const Functor::Cursor cursor = Functor::cursor(p.epilogue, coordinate);
            Functor::apply<CHANNELS>(p.epilogue, cursor, channels.first, min(channels.valid, CHANNELS), sums[0]);
            coordinate[2 + LAST] += 1;
#pragma unroll
            for (int i = 0; i + 1 < STRIP; ++i) {
#pragma unroll
                for (int v = 0; v < CHANNELS; ++v) sums[i][v] = sums[i + 1][v];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
    extern __shared__ __align__(16) unsigned char shared[];
    Accumulator* const weights = reinterpret_cast<Accumulator*>(shared);
    const int thread = threadIdx.x;
    const int block_channel = static_cast<int>(blockIdx.x % p.channel_blocks) * BLOCK_CHANNELS;
    const u32 block_strips = blockIdx.x / p.channel_blocks * static_cast<u32>(p.repeats * SLOTS);

    // The block's weights.
    for (int i = thread; i < p.tap_count * BLOCK_CHANNELS; i += THREADS) {
        const i64 filter = block_channel + i % BLOCK_CHANNELS;
        u32 tap = i / BLOCK_CHANNELS;
        i64 offset = filter * p.w_strides[0];
#pragma unroll
        for (int s = LAST; s >= 0; --s) {
            offset += tap % p.taps[s] * p.w_strides[1 + s];
            tap /= p.taps[s];
        }
        weights[i] = filter < p.filters ? convert<Accumulator>(p.w[offset]) : Accumulator(0);
    }
    __syncthreads();

    // This thread's channels and, one after the other, its strips.
    const int lane = CHANNELS > 1 ? thread % LANES : thread / SLOTS;
    const int slot = CHANNELS > 1 ? thread / LANES : thread % SLOTS;
    Channels channels;
    channels.first = block_channel + lane * CHANNELS;
    channels.valid = p.filters - channels.first;
    if (channels.valid <= 0) return;
    for (int repeat = 0; repeat < p.repeats; ++repeat) {
        const u32 number = block_strips + repeat * SLOTS + slot;
        if (number >= static_cast<u32>(p.strip_count)) return;
        const Strip strip(p, number);
        Accumulator sums[STRIP][CHANNELS] = {};
        const X_TYPE* const image = p.x + strip.image * p.x_strides[0];
        const Accumulator* row_weights = weights + lane * CHANNELS;
        const int row_taps = p.taps[LAST];
        for (int tap = 0; tap < p.tap_count; tap += row_taps) {
            u32 rest = tap / row_taps;
            const X_TYPE* row = image;
            bool exists = true;
#pragma unroll
            for (int s = LAST - 1; s >= 0; --s) {
                const i32 position = strip.origin[s] + static_cast<i32>(rest % p.taps[s]) * p.dilations[s];
                rest /= p.taps[s];
                exists = exists && static_cast<u32>(position) < static_cast<u32>(p.x_extents[s]);
                row += position * p.x_strides[2 + s];
            }
            if (exists) add_row<TAPS>(p, row, strip, channels, row_weights, sums);
            row_weights += row_taps * BLOCK_CHANNELS;
        }
        finish(p, strip, channels, sums);
    }
}
