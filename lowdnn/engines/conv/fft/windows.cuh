// Windows of tensors as lines of real values, and a block's walk through the passes of their transforms.
//
// A window is a box of positions; its value at coordinates (a, b, c) is number (a * extent_b + b) * extent_c + c of the
// line, and zeros follow. A product of two lines' polynomials is a convolution in one dimension. It is that of the
// boxes too where no coordinate of the result exceeds its extent, so that one transform serves one to three axes.
//
// Macros: POINTS (complex values of a transform), SPATIAL. HALF: 1 if there is one axis, without gaps, and no window has
// a value from number POINTS on; then all values of the first pass are real.

#pragma once

#include "include/math/division.cuh"
#include "real_transform.cuh"

typedef RealTransform<POINTS> Line;

// One axis of the windows of a tensor. Window w has the positions w * step - offset + coordinate, for coordinates below
// limit. An element of the tensor is at every spacing-th position, the first one at 0.
struct WindowAxis {
  i32 step, offset, limit;
  i32 elements;
  Divider spacing;
  i64 stride;
};

// The elements of a butterfly in the first pass with numbers from `first` to `last` - 1: elements begin to end - 1.
struct ElementRange {
  i32 begin, end;
  __device__ __forceinline__ ElementRange(int butterfly, i32 first, i32 last)
      : begin(index(first - butterfly)), end(index(last - butterfly)) {}
  static __device__ __forceinline__ i32 index(i32 number) {
    return number > 0 ? i32(u32(number + Line::BUTTERFLIES - 1) / Line::BUTTERFLIES) : 0;
  }
};

template <class T, bool HAS_GAPS> struct Windows {
  const T* tensor;
  i64 line_strides[2];  // strides of the two axes that are not spatial
  Divider seconds;      // extent of the second one
  Divider count;        // windows of a line
  Divider counts[SPATIAL];
  Divider extents[SPATIAL];
  WindowAxis axes[SPATIAL];

  __device__ __forceinline__ const T* line(u32 first, u32 second) const {
    return tensor + first * line_strides[0] + second * line_strides[1];
  }

  // The positions of coordinates 0 of a window.
  __device__ __forceinline__ void begin(u32 window, i32 (&positions)[SPATIAL]) const {
    digits<SPATIAL>(counts, window, positions);
#pragma unroll
    for (int s = 0; s < SPATIAL; ++s) positions[s] = positions[s] * axes[s].step - axes[s].offset;
  }

  // Value `number` of a window; zero where the tensor has no element.
  __device__ __forceinline__ f32 value(const T* line, const i32 (&positions)[SPATIAL], u32 number) const {
    u32 coordinates[SPATIAL];
    digits<SPATIAL>(extents, number, coordinates);
    bool exists = true;
    i64 offset = 0;
#pragma unroll
    for (int s = 0; s < SPATIAL; ++s) {
      const u32 position = positions[s] + coordinates[s];
      const u32 element = HAS_GAPS && i32(position) >= 0 ? axes[s].spacing.divide(position) : position;
      exists = exists && coordinates[s] < u32(axes[s].limit) && element < u32(axes[s].elements);
      if (HAS_GAPS) exists = exists && element * axes[s].spacing.divisor == position;
      offset += i64(element) * axes[s].stride;
    }
    return exists ? convert<f32>(line[offset]) : 0.0f;
  }

  // The first pass of a butterfly of window `positions`, to `line`.
  __device__ __forceinline__ void split(const T* from, const i32 (&positions)[SPATIAL], int butterfly,
                                        Complex* line) const {
    Complex v[Line::VALUES];
    if constexpr (HALF) load_half(from, positions[0], butterfly, v);
    else load(from, positions, butterfly, line, v);
    Line::split<0, HALF>(v, 0);
    Line::Elements<0>(butterfly).put(line, v);
  }

  // The elements of a butterfly in the first pass, by way of their places in `line`: a thread that had all their
  // addresses at once would need more registers than there are.
  __device__ __forceinline__ void load(const T* from, const i32 (&positions)[SPATIAL], int butterfly, Complex* line,
                                       Complex (&v)[Line::VALUES]) const {
    const Line::Elements<0> elements(butterfly);
#pragma unroll 4
    for (int k = 0; k < Line::VALUES; ++k) {
      const u32 number = butterfly + k * Line::BUTTERFLIES;
      line[elements.place(k)] = {value(from, positions, number), value(from, positions, number + POINTS)};
    }
    elements.get(line, v);
  }

  // The elements of a butterfly in the first pass, of a window that begins at `position` and has no second half.
  __device__ __forceinline__ void load_half(const T* from, i32 position, int butterfly,
                                            Complex (&v)[Line::VALUES]) const {
    const WindowAxis& axis = axes[0];
    const ElementRange elements(butterfly, -position, min(axis.elements - position, axis.limit));
    const T* first = from + i64(position + butterfly) * axis.stride;
    const auto read = [&](i64 stride, i32 begin) {
#pragma unroll
      for (int k = 0; k < Line::VALUES; ++k) {
        const bool exists = k >= begin && k < elements.end;
        v[k] = {exists ? convert<f32>(first[k * Line::BUTTERFLIES * stride]) : 0.0f, 0.0f};
      }
    };
    if (axis.stride == 1 && position >= 0) read(1, 0);  // then addresses differ by constants
    else read(axis.stride, elements.begin);
  }
};

// The lines of a block, in shared memory. Each thread has one butterfly of one line in every pass.
struct BlockLines {
  i32 log_count;  // the block has 2^log_count lines
  i32 are_near;   // whether neighbouring threads have neighbouring lines

  __device__ __forceinline__ i32 count() const { return 1 << log_count; }
  __device__ __forceinline__ i32 line() const {
    return are_near ? threadIdx.x & (count() - 1) : threadIdx.x / Line::BUTTERFLIES;
  }
  __device__ __forceinline__ i32 butterfly() const {
    return are_near ? threadIdx.x >> log_count : threadIdx.x % Line::BUTTERFLIES;
  }

  // Waits until values are stored that the butterflies of pass PASS exchange with those of the next one, or of the way
  // back. They belong to one group, which often is that of a warp.
  template <int PASS> __device__ __forceinline__ void wait() const {
    if (Line::group(PASS) <= 32 * Line::VALUES && !are_near) __syncwarp();
    else __syncthreads();
  }

  // The passes of a line between the first one and pass LAST, there, with waits before and after each.
  template <int LAST, int PASS = 1> __device__ __forceinline__ void split_between(Complex* line) const {
    wait<PASS - 1>();
    if constexpr (PASS < LAST) {
      const Line::Elements<PASS> elements(butterfly());
      Complex v[Line::VALUES];
      elements.get(line, v);
      Line::split<PASS>(v, elements.number);
      elements.put(line, v);
      split_between<LAST, PASS + 1>(line);
    }
  }

  // The passes of a line between pass LAST and the first one, back, with waits before and after each.
  template <int LAST, int PASS = LAST - 1> __device__ __forceinline__ void join_between(Complex* line) const {
    wait<PASS>();
    if constexpr (PASS > 0) {
      const Line::Elements<PASS> elements(butterfly());
      Complex v[Line::VALUES];
      elements.get(line, v);
      Line::join<PASS>(v, elements.number);
      elements.put(line, v);
      join_between<LAST, PASS - 1>(line);
    }
  }
};

// Where a butterfly's value k of a spectrum lies in device memory.
__device__ __forceinline__ i64 spectrum_place(i64 spectrum, int butterfly, int k) {
  return spectrum * POINTS + k * Line::BUTTERFLIES + butterfly;
}
