"""The taps along one axis, as the kernels need them: ``TapAxis`` of ``resample.cuh``, and compile-time patterns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from lowdnn.engines.launch import MAX_EXTENT, ceil_div, divider, i32
from lowdnn.ops.resample import AxisTaps
from lowdnn.plan import Scalar, ScalarType, Struct

#: An axis that the tensors lack: one position, one output, one tap.
MISSING = AxisTaps(inputs=1, outputs=1, step=1, offset=0, reach=1, unit=1)

#: Taps of a window at most, if windows are unrolled.
_MAX_TAPS = 16
#: Denominator of the fractions of a position at most, if windows are unrolled.
_MAX_UNIT = 16


@dataclass(frozen=True)
class Pattern:
    """The windows along an axis, known at compile time: window i begins at floor((i * step + phase) / unit).

    Positions are counted from the first one of a tile.
    """

    taps: int
    step: int
    unit: int
    phase: int

    @property
    def name(self) -> str:
        """The part of kernel names for the windows."""
        fraction = "" if self.unit == 1 else f"u{self.unit}p{self.phase}"
        return f"{self.taps}s{self.step}{fraction}"

    def windows(self, count: int) -> str:
        """The C++ type of ``count`` neighbouring windows (``window_tile.cuh``)."""
        return f"Windows<{count},{self.taps},{self.step},{self.unit},{self.phase}>"

    def first(self, window: int) -> int:
        return (window * self.step + self.phase) // self.unit

    def positions(self, windows: int) -> int:
        """Positions from the first tap of ``windows`` windows to the last tap."""
        return self.first(windows - 1) + self.taps


def canonical(axis: AxisTaps) -> AxisTaps:
    """The axis itself, except that a single window of few taps gets the step that adjacent windows would have."""
    return replace(axis, step=axis.span * axis.unit) if axis.outputs == 1 and has_pattern(axis) else axis


def has_pattern(axis: AxisTaps) -> bool:
    """Whether all windows have the same number of taps, few enough to be unrolled."""
    return axis.reach % axis.unit == 0 and axis.span <= _MAX_TAPS and axis.unit <= _MAX_UNIT


def window_period(axis: AxisTaps) -> int:
    """The number of windows after which they begin a whole number of positions later."""
    return axis.unit // gcd(axis.step, axis.unit)


def shares_taps(axis: AxisTaps) -> bool:
    """Whether neighbouring windows read the same positions."""
    return axis.span * axis.unit > axis.step


def has_inside_taps(axis: AxisTaps) -> bool:
    """Whether each window has a tap inside the image."""
    last = (axis.outputs - 1) * axis.step - axis.offset
    return -axis.offset // axis.unit + axis.span > 0 and last // axis.unit < axis.inputs


def window_pattern(axis: AxisTaps) -> Pattern:
    """The pattern of a tile of windows, whose number is a multiple of their period."""
    return Pattern(axis.span, axis.step, axis.unit, -axis.offset % axis.unit)


@dataclass(frozen=True)
class Readers:
    """The outputs that read a tile of positions, known at compile time: ``Readers`` of the kernels.

    Output k samples the image at (k * step - phase) / unit, counted from the tile's first position. Outputs ``first``
    to ``first + outputs - 1`` read the tile.
    """

    positions: int
    taps: int
    step: int
    unit: int
    phase: int

    @property
    def name(self) -> str:
        """The part of kernel names for the readers."""
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
    """The number of positions after which the pattern of the outputs that read them repeats."""
    return axis.step // gcd(axis.step, axis.unit)


def readers(axis: AxisTaps, positions: int) -> Readers:
    """The readers of a tile of positions, whose number is a multiple of their period."""
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
    """The greatest integer that the kernels compute along the axis, with ``tile`` positions past its end."""
    start, _ = _raised(-axis.offset, axis.unit)
    low, high, _ = _readers(axis)
    outputs = (axis.outputs + tile) * axis.step + start + axis.reach
    return max(outputs, (axis.inputs + tile) * axis.unit + max(low, high))


def fits(axis: AxisTaps, tile: int) -> bool:
    """Whether 32-bit integers hold all numbers that the kernels compute along the axis."""
    return largest_number(axis, tile) <= MAX_EXTENT


def leaves_image(axis: AxisTaps) -> bool:
    """Whether a tap lies outside the image."""
    last = (axis.outputs - 1) * axis.step - axis.offset
    return -axis.offset < 0 or (last + axis.reach) // axis.unit > axis.inputs


def _readers(axis: AxisTaps) -> tuple[int, int, int]:
    """(numerator of a position's first reading output, that of the last one, outputs added to both), for position 0.

    Output o reads position i if first(o) <= i < end(o). This means that o is at least
    ceil(((i + 1) * unit + offset - reach) / step) and at most floor(((i + 1) * unit - 1 + offset) / step).
    """
    low = axis.unit + axis.offset - axis.reach + axis.step - 1
    high = axis.unit - 1 + axis.offset
    steps = max(0, ceil_div(-min(low, high), axis.step))
    return low + steps * axis.step, high + steps * axis.step, steps


def _raised(numerator: int, divisor: int) -> tuple[int, int]:
    """(the numerator plus the fewest multiples of the divisor that make it >= 0, how many these are)."""
    multiples = max(0, ceil_div(-numerator, divisor))
    return numerator + multiples * divisor, multiples
