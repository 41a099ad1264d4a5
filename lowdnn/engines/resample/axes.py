"""The taps along one axis as the kernels take them: ``TapAxis`` of ``resample.cuh``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from lowdnn.engines.launch import MAX_EXTENT, ceil_div, divider, i32
from lowdnn.ops.resample import AxisTaps
from lowdnn.plan import Scalar, ScalarType, Struct

#: An axis that the tensors do not have: one position, one output, one tap.
MISSING = AxisTaps(inputs=1, outputs=1, step=1, offset=0, reach=1, unit=1)

#: The largest windows and the finest fractions of a position that are unrolled.
_MAX_TAPS = 16
_MAX_UNIT = 16


@dataclass(frozen=True)
class Pattern:
    """What is known at compile time of windows along an axis: window i begins at floor((i * step + phase) / unit).

    Positions are counted from the first one of a tile of windows or of positions.
    """

    taps: int
    step: int
    unit: int
    phase: int

    @property
    def name(self) -> str:
        """The axis in kernel names."""
        fraction = "" if self.unit == 1 else f"u{self.unit}p{self.phase}"
        return f"{self.taps}s{self.step}{fraction}"

    def windows(self, count: int) -> str:
        """The C++ type of so many neighbouring windows (``window_tile.cuh``)."""
        return f"Windows<{count},{self.taps},{self.step},{self.unit},{self.phase}>"

    def first(self, window: int) -> int:
        return (window * self.step + self.phase) // self.unit

    def positions(self, windows: int) -> int:
        """The positions from the first tap of so many windows to the last one's."""
        return self.first(windows - 1) + self.taps


def canonical(axis: AxisTaps) -> AxisTaps:
    """The axis; where it has one window, of few taps, with a step as if windows lay side by side."""
    return replace(axis, step=axis.span * axis.unit) if axis.outputs == 1 and has_pattern(axis) else axis


def has_pattern(axis: AxisTaps) -> bool:
    """Whether all windows have the same number of taps, few enough to be unrolled."""
    return axis.reach % axis.unit == 0 and axis.span <= _MAX_TAPS and axis.unit <= _MAX_UNIT


def window_period(axis: AxisTaps) -> int:
    """So many windows begin a whole number of positions further on."""
    return axis.unit // gcd(axis.step, axis.unit)


def shares_taps(axis: AxisTaps) -> bool:
    """Whether neighbouring windows read the same positions."""
    return axis.span * axis.unit > axis.step


def has_inside_taps(axis: AxisTaps) -> bool:
    """Whether each window has a tap inside the image."""
    last = (axis.outputs - 1) * axis.step - axis.offset
    return -axis.offset // axis.unit + axis.span > 0 and last // axis.unit < axis.inputs


def window_pattern(axis: AxisTaps) -> Pattern:
    """The pattern of a tile of windows, a multiple of their period."""
    return Pattern(axis.span, axis.step, axis.unit, -axis.offset % axis.unit)


@dataclass(frozen=True)
class Readers:
    """What is known at compile time of the outputs that read a tile of positions: ``Readers`` of the kernels.

    Output k samples the image at (k * step - phase) / unit, counted from the tile's first position; ``first`` to
    ``first + outputs - 1`` read the tile.
    """

    positions: int
    taps: int
    step: int
    unit: int
    phase: int

    @property
    def name(self) -> str:
        """The axis in kernel names."""
        return f"{self.taps}s{self.step}u{self.unit}p{self.phase}"

    @property
    def c_type(self) -> str:
        return f"Readers<{self.positions},{self.taps},{self.step},{self.unit},{self.phase}>"

    @property
    def first(self) -> int:
        return ceil_div((1 - self.taps) * self.unit + self.phase, self.step)

    @property
    def outputs(self) -> int:
        return (self.positions * self.unit - 1 + self.phase) // self.step - self.first + 1

    @property
    def origin(self) -> int:
        """The first tap of the first output."""
        return (self.first * self.step - self.phase) // self.unit

    @property
    def windows(self) -> Pattern:
        """The windows of the outputs."""
        return Pattern(self.taps, self.step, self.unit, (self.first * self.step - self.phase) % self.unit)


def reader_period(axis: AxisTaps) -> int:
    """So many positions further on, the outputs that read them repeat."""
    return axis.step // gcd(axis.step, axis.unit)


def readers(axis: AxisTaps, positions: int) -> Readers:
    """The readers of a tile of positions, a multiple of their period."""
    return Readers(positions, axis.span, axis.step, axis.unit, axis.offset % axis.step)


def axis_struct(axis: AxisTaps) -> Struct:
    """The fields of a ``TapAxis``."""
    start, bias = _raised(-axis.offset, axis.unit)
    low, high, low_bias = _readers(axis)
    return Struct(
        (
            *i32((axis.inputs, axis.outputs, axis.span, start, bias, axis.reach, low, high, low_bias)),
            Struct(divider(axis.unit)),
            Struct(divider(axis.step)),
            Scalar(ScalarType.F64, 1.0 / axis.unit),
        )
    )


def largest_number(axis: AxisTaps, tile: int) -> int:
    """The greatest integer that the kernels form along the axis, with ``tile`` positions past its end."""
    start, _ = _raised(-axis.offset, axis.unit)
    low, high, _ = _readers(axis)
    outputs = (axis.outputs + tile) * axis.step + start + axis.reach
    return max(outputs, (axis.inputs + tile) * axis.unit + max(low, high))


def fits(axis: AxisTaps, tile: int) -> bool:
    """Whether 32-bit integers hold all of them."""
    return largest_number(axis, tile) <= MAX_EXTENT


def leaves_image(axis: AxisTaps) -> bool:
    """Whether a tap lies outside the image."""
    last = (axis.outputs - 1) * axis.step - axis.offset
    return -axis.offset < 0 or (last + axis.reach) // axis.unit > axis.inputs


def _readers(axis: AxisTaps) -> tuple[int, int, int]:
    """Numerators, at position 0, of the first output that reads a position and of the last one; what was added to both.

    Output o reads position i where first(o) <= i < end(o), that is where o is at least
    ceil(((i + 1) * unit + offset - reach) / step) and at most floor(((i + 1) * unit - 1 + offset) / step).
    """
    low = axis.unit + axis.offset - axis.reach + axis.step - 1
    high = axis.unit - 1 + axis.offset
    steps = max(0, ceil_div(-min(low, high), axis.step))
    return low + steps * axis.step, high + steps * axis.step, steps


def _raised(numerator: int, divisor: int) -> tuple[int, int]:
    """The numerator made >= 0 by multiples of the divisor, and how many."""
    multiples = max(0, ceil_div(-numerator, divisor))
    return numerator + multiples * divisor, multiples
