"""Convolutions in one to three dimensions, transposed ones, and their gradients.

    y = x * w + bias        dx, dw, dbias from dy

A transposed convolution is the gradient of a plain one with respect to its image: there w is the filter, x the response
and y the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowdnn.enums import DataType, PointwiseMode
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor
from lowdnn.torch.operation import ABSENT, Arguments, Overload, Result
from lowdnn.torch.sketch import (
    Declined,
    Dims,
    Sketch,
    check_floats,
    compute_type_of,
    data_type_of,
    suggested_strides,
)

#: stride, padding, dilation, transposed, output padding and groups, as torch has them.
Geometry = tuple[Dims, Dims, Dims, bool, Dims, int]

_X, _W, _BIAS = 0, 1, 2
_DY, _BACKWARD_X, _BACKWARD_W = 0, 1, 2


def read_forward(
    x: Any, w: Any, bias: Any, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int,
) -> Arguments:  # fmt: skip
    numbers = tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups
    return ((x, w) if bias is None else (x, w, bias)), numbers


def forward(sketch: Sketch, *geometry: Any) -> Result:
    x, w, bias = (*sketch.tensors, ABSENT)[:3]
    check_floats(x, w, bias)
    spatial = _spatial(x, w)
    convolution = _convolution(spatial, geometry, x.dtype)
    shape = _output_shape(convolution, tuple(x.shape), tuple(w.shape), geometry)
    y = sketch.allocate(shape, x.dtype, suggested_strides((x, w), shape))
    has_bias = bias.shape is not None
    target = sketch.virtual(shape, convolution.compute_type) if has_bias else sketch.at(y)
    _add_product(sketch, convolution, geometry, sketch.at(_X), sketch.at(_W), target)
    if has_bias:
        shift = sketch.at(_BIAS, (1, shape[1], *(1,) * spatial))
        sketch.pointwise(PointwiseMode.ADD, sketch.at(y), target, shift)
    sketch.end_step()
    return y


def read_backward(
    dy: Any, x: Any, w: Any, bias_sizes: Any, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int, output_mask: Sequence[bool],
) -> Arguments:  # fmt: skip
    geometry = tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups
    return (dy, x, w), (geometry, tuple(output_mask))


def backward(sketch: Sketch, geometry: Geometry, mask: tuple[bool, bool, bool]) -> Result:
    dy, x, w = sketch.tensors
    check_floats(dy, x, w)
    spatial = _spatial(x, w)
    convolution = _convolution(spatial, geometry, x.dtype)
    if tuple(dy.shape) != _output_shape(convolution, tuple(x.shape), tuple(w.shape), geometry):
        raise Declined(f"a gradient with dims {list(dy.shape)}, which are not those of the output")
    results: list[int | None] = [None, None, None]
    if mask[0]:
        results[0] = dx = sketch.allocate(x.shape, x.dtype, suggested_strides((x, w), x.shape))
        _add_data_gradient(sketch, convolution, geometry, sketch.at(dx))
    if mask[1]:
        results[1] = dw = sketch.allocate(w.shape, w.dtype, suggested_strides((x, w), w.shape))
        _add_filter_gradient(sketch, convolution, geometry, sketch.at(dw))
    if mask[2]:
        channels = dy.shape[1]
        results[2] = dbias = sketch.allocate((channels,), w.dtype)
        sketch.reduced(sketch.at(_DY), sketch.at(dbias, (1, channels, *(1,) * spatial)))
        sketch.end_step()
    return tuple(results)


def _add_product(
    sketch: Sketch, convolution: Convolution, geometry: Sequence[Any], x: Tensor, w: Tensor, y: Tensor
) -> None:
    if geometry[3]:
        sketch.add(ConvolutionBackwardData(convolution, w=w, dy=x, dx=y))
    else:
        sketch.add(ConvolutionForward(convolution, x=x, w=w, y=y))


def _add_data_gradient(sketch: Sketch, convolution: Convolution, geometry: Sequence[Any], dx: Tensor) -> None:
    dy, w = sketch.at(_DY), sketch.at(_BACKWARD_W)
    if geometry[3]:
        sketch.add(ConvolutionForward(convolution, x=dy, w=w, y=dx))
    else:
        sketch.add(ConvolutionBackwardData(convolution, w=w, dy=dy, dx=dx))
    sketch.end_step()


def _add_filter_gradient(sketch: Sketch, convolution: Convolution, geometry: Sequence[Any], dw: Tensor) -> None:
    dy, x = sketch.at(_DY), sketch.at(_BACKWARD_X)
    image, response = (dy, x) if geometry[3] else (x, dy)
    sketch.add(ConvolutionBackwardFilter(convolution, x=image, dy=response, dw=dw))
    sketch.end_step()


def _spatial(x: Any, w: Any) -> int:
    """The number of spatial dimensions."""
    spatial = len(x.shape) - 2
    if len(w.shape) != len(x.shape) or not 1 <= spatial <= 3:
        raise Declined(f"dims {list(x.shape)} and {list(w.shape)}, where one to three spatial ones are expected")
    return spatial


def _convolution(spatial: int, geometry: Sequence[Any], dtype: Any) -> Convolution:
    stride, padding, dilation = (_each(values, spatial) for values in geometry[:3])
    compute: DataType = compute_type_of(data_type_of(dtype))
    return Convolution(compute, spatial, padding, padding, stride, dilation)


def _each(values: Sequence[int], spatial: int) -> Dims:
    """One value for each spatial dimension; a single one stands for all."""
    return tuple(values) if len(values) == spatial else tuple(values) * spatial


def _output_shape(convolution: Convolution, x: Dims, w: Dims, geometry: Sequence[Any]) -> Dims:
    """The dims of y. Declines what torch does not take either."""
    *_, transposed, output_padding, groups = geometry
    inputs = x[1] // groups if not transposed else w[0] // groups
    if x[1] % groups or w[0] % groups or inputs != (w[1] if not transposed else x[1] // groups):
        raise Declined(f"{x[1]} channels with a filter of dims {list(w)} in {groups} groups")
    if not transposed:
        return convolution.output_dims(x, w)
    extra = _each(output_padding, convolution.spatial_dims)
    spatial = [
        (extent - 1) * stride - 2 * padding + dilation * (taps - 1) + 1 + more
        for extent, stride, padding, dilation, taps, more in zip(
            x[2:], convolution.strides, convolution.pre_paddings, convolution.dilations, w[2:], extra, strict=True
        )
    ]
    shape = (x[0], w[1] * groups, *spatial)
    if min(shape) < 1 or convolution.output_dims(shape, w) != x:
        raise Declined(f"output padding {list(extra)} with strides {list(convolution.strides)}")
    return shape


OVERLOADS = (
    Overload("convolution", "convolution", read_forward, forward, kind="conv"),
    Overload("convolution_backward", "convolution", read_backward, backward, kind="conv"),
)
