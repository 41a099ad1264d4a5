"""The work of each launch of a convolution by spectra, counted in instructions of threads.

An instruction counts as one multiply-add, two operations. The counts are fitted to 34 times of kernels on an NVIDIA
H200, which the estimates meet within 11 % in the root mean square and 25 % at most; what instructions wait for is part
of them. _SLOWER_PRODUCT is fitted to times of 24 layers.
"""

from __future__ import annotations

from lowdnn.engines.conv.fft.correlation import SpectralCorrelation
from lowdnn.engines.conv.fft.lines import Lines
from lowdnn.engines.conv.fft.tiling import COMPLEX_BYTES, Tiling
from lowdnn.engines.launch import bytes_touched, moved_bytes
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import MathUnit, Work

#: Instructions of a complex value in a pass: its part of a root, products and sums, shared memory.
_PASS = 8.5
#: Instructions of a complex value in the first pass, whose roots are constants and whose radix is mostly less.
_FIRST_PASS = 5
#: Instructions that read one value: its position, the check that it exists, its conversion.
_READ = 24.5
#: Instructions that write one value: its coordinates, the check that it exists, its address and the epilogue.
_WRITE = 51.5
#: Instructions that read one value where second halves are empty, and addresses advance by constants.
_READ_HALF = 25
#: Instructions that write one value there.
_WRITE_HALF = 4
#: Further instructions of a value for each axis but one, and for each axis with distant elements.
_AXIS = 8
#: Further instructions of a value for each tensor that the epilogue reads.
_LOAD = 8
#: Instructions that store or load a complex value of a spectrum.
_SPECTRUM = 21.5

#: Time of a sum of products relative to its multiplications.
_SLOWER_PRODUCT = 2.2
#: Operations of a complex product that is added.
_PRODUCT_FLOPS = 8

#: Seconds of a block's start, with its first loads, and of its end; an estimate.
_START_S = 2e-6
#: Seconds of a pass of a block, if nothing else delays it; an estimate.
_PASS_S = 0.6e-6
#: Seconds from one term of a thread's sums to the next, if nothing else delays it; an estimate.
_TERM_S = 0.3e-6

#: Fewest operations that any tiling takes for a value of an operand or of the result.
LEAST_VALUE_FLOPS = 2 * (_FIRST_PASS + _PASS + min(_READ_HALF, _WRITE_HALF))
#: Fewest operations for a value of the result and each term of its sum over depth.
LEAST_TERM_FLOPS = _SLOWER_PRODUCT * _PRODUCT_FLOPS / 2


def spectra_work(lines: Lines, tensor: Tensor, are_spaced: bool, are_half: bool) -> Work:
    """The work of writing the spectra of windows of ``tensor``.  are_half: whether second halves are empty."""
    spatial = len(tensor.dims) - 2
    reading = _READ_HALF if are_half else 2 * (_READ + _AXIS * (spatial - 1 + spatial * are_spaced))
    written = lines.count * lines.windows * lines.points * COMPLEX_BYTES
    return _transforms(lines, 1, _passes(lines) + reading + _SPECTRUM, bytes_touched(tensor) + written)


def targets_work(correlation: SpectralCorrelation, lines: Lines, is_fused: bool, is_half: bool) -> Work:
    """The work of writing the target.

    is_fused: whether it begins with the source, not with the target's spectra.  is_half: whether second halves are
    empty.
    """
    others, epilogue = correlation.spatial - 1, correlation.epilogue
    loads = _LOAD * len(epilogue.loads)
    writing = _WRITE_HALF + loads if is_half else 2 * (_WRITE + _AXIS * others + loads)
    instructions = _passes(lines) + writing + _SPECTRUM
    if is_fused:
        instructions += _passes(lines) + (_READ_HALF if is_half else 2 * (_READ + _AXIS * others))
        read_bytes = bytes_touched(correlation.source) + correlation.maps * lines.points * COMPLEX_BYTES
    else:
        read_bytes = lines.count * lines.windows * lines.points * COMPLEX_BYTES
    return _transforms(lines, 1 + is_fused, instructions, read_bytes + moved_bytes(epilogue))


def product_work(correlation: SpectralCorrelation, tiling: Tiling) -> Work:
    """The work of summing products of spectra."""
    results = correlation.rows * correlation.maps * tiling.tiles
    sources = correlation.source.dims[0] * correlation.source.dims[1] * tiling.windows
    taps = correlation.taps.dims[0] * correlation.taps.dims[1] * tiling.pieces
    terms = correlation.depth * tiling.pieces
    flops = _SLOWER_PRODUCT * _PRODUCT_FLOPS * results * terms * tiling.points
    moved = (sources + taps + results) * tiling.points * COMPLEX_BYTES
    return Work(round(flops), moved, MathUnit.FMA_F32, _START_S + terms * _TERM_S)


def _transforms(lines: Lines, transforms: int, instructions: float, moved: int) -> Work:
    """The work of a launch.  transforms: how often each line is transformed.  instructions: how many a complex value
    has in all passes."""
    busy_s = _START_S + transforms * lines.passes * _PASS_S
    flops = round(2 * lines.blocks * lines.own * lines.points * instructions)
    return Work(flops, moved, MathUnit.FMA_F32, busy_s)


def _passes(lines: Lines) -> float:
    """Instructions of a complex value in all passes of a transform."""
    return _FIRST_PASS + (lines.passes - 1) * _PASS
