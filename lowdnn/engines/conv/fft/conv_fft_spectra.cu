// conv_fft_spectra: the spectra of windows of a tensor, times a factor:
//     spectra[line][window][u] = scale * sum over j of window[j] * u^j,    or the conjugate of that
//
// Layouts: the tensor has any strides; a line is a pair of indices of its first two axes, the second one fastest. The
// order of a spectrum's values is that of real_transform.cuh.
// Block: the lines of BlockLines, one window of each; blockIdx.x = tile of lines * windows + window.
// Shared memory (dynamic): the block's lines of real_transform.cuh.
// Launch: a thread for each butterfly, at most 512; it may be a dependent launch.
// Macros: POINTS SPATIAL HALF (windows.cuh) X_TYPE; SPACED: 1 if elements are farther apart
// than one position.

#include "include/ptx/dependent_launch.cuh"
#include "windows.cuh"

struct Params {
  BlockLines block;
  Windows<X_TYPE, SPACED> from;
  Complex* spectra;
  Complex scale;  // factors of real and of imaginary parts
  i32 lines;
};

extern "C" __global__ void __launch_bounds__(512, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  Complex* const line = reinterpret_cast<Complex*>(shared) + p.block.line() * Line::LINE;
  const u32 tile = p.from.count.divide(blockIdx.x), window = blockIdx.x - tile * p.from.count.divisor;
  i32 positions[SPATIAL];
  p.from.begin(window, positions);
  wait_for_previous_kernel();
  allow_next_kernel();

  // The first pass, from device memory, and those between. Lines past the last one repeat it and are not stored.
  constexpr int LAST = Line::passes();
  const i32 wanted = i32(tile) * p.block.count() + p.block.line(), butterfly = p.block.butterfly();
  const u32 number = min(wanted, p.lines - 1);
  const u32 first = p.from.seconds.divide(number), second = number - first * p.from.seconds.divisor;
  p.from.split(p.from.line(first, second), positions, butterfly, line);
  p.block.split_between<LAST>(line);
  if (wanted >= p.lines) return;

  // The last one, to device memory.
  const Line::Elements<LAST> elements(butterfly);
  Complex v[Line::VALUES];
  elements.get(line, v);
  Line::split<LAST>(v, elements.number);
  const i64 spectrum = i64(number) * p.from.count.divisor + window;
#pragma unroll
  for (int k = 0; k < Line::VALUES; ++k) {
    p.spectra[spectrum_place(spectrum, butterfly, k)] = {v[k].x * p.scale.x, v[k].y * p.scale.y};
  }
}
