"""The taps along one axis as the kernels take them: ``TapAxis`` of ``include/resample.cuh``."""

from __future__ import annotations

from lowdnn.engines.launch import MAX_EXTENT, ceil_div, divider, i32
from lowdnn.ops.resample import AxisTaps
from lowdnn.plan import Scalar, ScalarType, Struct

#: An axis that the tensors do not have: one position, one output, one tap.
MISSING = AxisTaps(inputs=1, outputs=1, step=1, offset=0, reach=1, unit=1)


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
