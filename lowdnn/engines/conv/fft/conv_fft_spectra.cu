// conv_fft_spectra: the spectra of windows of a tensor, times a factor:
//     spectra[line][window][u] = scale * sum over j of window[j] * u^j,    or the conjugate of that
//
// Layouts: the tensor has any strides; a line is a pair of indices of its first two axes, the second one fastest. The
// order of a spectrum's values is that of real_transform.cuh.
// Block: the lines of BlockLines, one window of each; blockIdx.x = tile of lines * windows + window.
// Shared memory (dynamic): the block's lines of real_transform.cuh.
// Launch: at most 512 threads; it may be a dependent launch.
// Macros: POINTS SPATIAL HALF (windows.cuh) X_TYPE; SPACED: 1 if elements are farther apart
// than one position.

#include "include/ptx/dependent_launch.cuh"
#include "windows.cuh"

struct Params {
  BlockLines block;
  Windows<X_TYPE, SPACED> from;
  Complex* spectra;
  Complex scale;  // of real and of imaginary parts
  i32 lines;
};

extern "C" __global__ void __launch_bounds__(512, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  Complex* const lines = reinterpret_cast<Complex*>(shared);
  const u32 tile = p.from.count.divide(blockIdx.x), window = blockIdx.x - tile * p.from.count.divisor;
  i32 positions[SPATIAL];
  p.from.begin(window, positions);
  wait_for_previous_kernel();
  allow_next_kernel();

  // The first pass, from device memory. Lines past the last one repeat it and are not stored.
  const auto number = [&](int line) { return u32(min(i32(tile) * p.block.count() + line, p.lines - 1)); };
  p.block.for_each([&](int line, int butterfly) {
    const u32 first = p.from.seconds.divide(number(line)), second = number(line) - first * p.from.seconds.divisor;
    p.from.split(p.from.line(first, second), positions, butterfly, lines + line * Line::LINE);
  });

  // The passes between, and the last one, to device memory.
  constexpr int LAST = Line::passes();
  p.block.split_between<LAST>(lines);
  p.block.for_each([&](int line, int butterfly) {
    if (i32(tile) * p.block.count() + line >= p.lines) return;
    const Line::Elements<LAST> elements(butterfly);
    Complex v[Line::VALUES];
    elements.get(lines + line * Line::LINE, v);
    Line::split<LAST>(v, elements.number);
    const i64 spectrum = i64(number(line)) * p.from.count.divisor + window;
#pragma unroll
    for (int k = 0; k < Line::VALUES; ++k) {
      p.spectra[spectrum_place(spectrum, butterfly, k)] = {v[k].x * p.scale.x, v[k].y * p.scale.y};
    }
  });
}
