"""Softmax and its logarithm along one axis, and their gradients.

dx = y * (dy - sum(y * dy))        of the logarithm, dx = dy - exp(y) * sum(dy)
"""

from __future__ import annotations

from typing import Any

from lowdnn.enums import PointwiseMode
from lowdnn.ops.softmax import Softmax
from lowdnn.torch.operation import Arguments, Overload, Result
from lowdnn.torch.sketch import FLOATS, Declined, Sketch, check_floats, compute_type_of, data_type_of, name_of


def read_forward(x: Any, dim: int, half_to_float: bool) -> Arguments:
    return (x,), (dim, half_to_float)


def softmax(sketch: Sketch, dim: int, half_to_float: bool) -> Result:
    return _forward(sketch, dim, half_to_float, is_log=False)


def log_softmax(sketch: Sketch, dim: int, half_to_float: bool) -> Result:
    return _forward(sketch, dim, half_to_float, is_log=True)


def read_backward(dy: Any, y: Any, dim: int, input_dtype: Any) -> Arguments:
    return (dy, y), (dim, input_dtype)


def softmax_backward(sketch: Sketch, dim: int, input_dtype: Any) -> Result:
    return _backward(sketch, dim, input_dtype, is_log=False)


def log_softmax_backward(sketch: Sketch, dim: int, input_dtype: Any) -> Result:
    return _backward(sketch, dim, input_dtype, is_log=True)


def _forward(sketch: Sketch, dim: int, half_to_float: bool, *, is_log: bool) -> Result:
    (x,) = sketch.tensors
    check_floats(x)
    axis = _axis(x, dim)
    y = sketch.allocate(x.shape, FLOATS[1] if half_to_float else x.dtype)
    sketch.add(Softmax(sketch.at(0), sketch.at(y), axes=(axis,), is_log=is_log, masked_is_nan=True))
    sketch.end_step()
    return y


def _backward(sketch: Sketch, dim: int, input_dtype: Any, *, is_log: bool) -> Result:
    dy, y = sketch.tensors
    check_floats(dy, y)
    if input_dtype not in FLOATS:
        raise Declined(f"a gradient of {name_of(input_dtype)}")
    axis = _axis(y, dim)
    place = sketch.allocate(y.shape, input_dtype)
    gradient, values, result = sketch.at(0), sketch.at(1), sketch.at(place)
    compute = compute_type_of(data_type_of(y.dtype))
    sums = tuple(1 if own == axis else extent for own, extent in enumerate(values.dims))
    if is_log:
        total = sketch.reduced(gradient, sketch.virtual(sums, compute))
        weights = sketch.pointwise(PointwiseMode.EXP, sketch.virtual(values.dims, compute), values)
        share = sketch.pointwise(PointwiseMode.MUL, sketch.virtual(values.dims, compute), weights, total)
        sketch.pointwise(PointwiseMode.SUB, result, gradient, share)
    else:
        product = sketch.pointwise(PointwiseMode.MUL, sketch.virtual(values.dims, compute), values, gradient)
        total = sketch.reduced(product, sketch.virtual(sums, compute))
        centred = sketch.pointwise(PointwiseMode.SUB, sketch.virtual(values.dims, compute), gradient, total)
        sketch.pointwise(PointwiseMode.MUL, result, centred, values)
    sketch.end_step()
    return place


def _axis(x: Any, dim: int) -> int:
    rank = len(x.shape)
    if not -rank <= dim < rank:
        raise Declined(f"axis {dim} of rank {rank}")
    return dim % rank


OVERLOADS = (
    Overload("_softmax", "softmax", read_forward, softmax),
    Overload("_softmax_backward_data", "softmax", read_backward, softmax_backward),
    Overload("_log_softmax", "softmax", read_forward, log_softmax),
    Overload("_log_softmax_backward_data", "softmax", read_backward, log_softmax_backward),
)
