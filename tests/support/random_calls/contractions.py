"""Random convolutions in three directions, with bias and activation, and im2col."""

from __future__ import annotations

import numpy as np

from lowdnn.capi.calls.convolution_algorithms import BACKWARD_DATA, BACKWARD_FILTER, FORWARD, Direction
from lowdnn.enums import ActivationMode, ConvolutionMode, DataType
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_forward import ConvolutionForward
from tests.support.random_calls.elementwise import pair
from tests.support.random_calls.operands import (
    AddressOf,
    Array,
    Call,
    DescriptorOf,
    Draw,
    Enum,
    Family,
    Made,
    Operand,
    Room,
    blended,
)


class Problem:
    """The geometry of a random convolution, its groups and the shapes of x, w and y."""

    def __init__(self, draw: Draw) -> None:
        rank = draw.choose((2, 2, 2, 3))
        taps = tuple(draw.rng.randint(1, 3) for _ in range(rank))
        dilations = tuple(draw.choose((1, 1, 2)) for _ in taps)
        pads = tuple(draw.rng.randint(0, 2) for _ in taps)
        strides = tuple(draw.choose((1, 1, 2, 3)) for _ in taps)
        extents = tuple(1 + (tap - 1) * gap + draw.rng.randint(0, 4) for tap, gap in zip(taps, dilations, strict=True))
        self.groups = draw.choose((1, 1, 1, 2, 4))
        channels, filters = draw.rng.randint(1, 4), draw.rng.randint(1, 4)
        self.x = (draw.rng.randint(1, 2), channels * self.groups, *extents)
        self.w = (filters * self.groups, channels, *taps)
        mode = draw.choose(ConvolutionMode)
        compute = DataType.DOUBLE if draw.data_type is DataType.DOUBLE else DataType.FLOAT
        self.geometry = Convolution(compute, rank, pads, pads, strides, dilations, mode)
        self.y = self.geometry.output_dims(self.x, self.w)
        arguments = (rank, pads, strides, dilations, Enum(mode), Enum(compute))
        self.made = Made("Convolution", "cudnnSetConvolutionNdDescriptor", arguments)
        if self.groups > 1:
            self.made = Made(
                "Convolution", f"{self.made.name}+cudnnSetConvolutionGroupCount", (arguments, (self.groups,))
            )


def _convolution(direction: Direction, draw: Draw) -> Call:
    problem, scales = Problem(draw), draw.scales()
    operands = []
    for port in direction.ports:
        dims = {"x": problem.x, "w": problem.w, "y": problem.y}[port.removeprefix("d")]
        values = draw.integers(dims, -3, 3) if port != direction.ports[2] else draw.old(dims, scales[1])
        operands.append(draw.filter(port, values) if "w" in port else draw.operand(port, values))
    a, b, c = operands
    operation = direction.operation(problem.geometry, **{operand.port: operand.tensor for operand in operands})
    (result,) = operation.reference({a.port: a.values, b.port: b.values}).values()
    arguments = [
        draw.scale(scales[0]), *pair(a), *pair(b), problem.made, Enum(int(draw.choose(direction.order[:2]))),
        Room(1 << 20), draw.scale(scales[1]), *pair(c),
    ]  # fmt: skip
    return Call(f"cudnnConvolution{direction.name}", arguments, {c.port: blended(scales, result, c.values)})


def forward(draw: Draw) -> Call:
    return _convolution(FORWARD, draw)


def backward_data(draw: Draw) -> Call:
    return _convolution(BACKWARD_DATA, draw)


def backward_filter(draw: Draw) -> Call:
    return _convolution(BACKWARD_FILTER, draw)


def bias_activation(draw: Draw) -> Call:
    problem, scales = Problem(draw), (draw.choose((1.0, 2.0)), draw.choose((0.0, 1.0, -1.0)))
    mode = draw.choose((ActivationMode.RELU, ActivationMode.IDENTITY))
    x, w = draw.operand("x", draw.integers(problem.x, -3, 3)), draw.filter("w", draw.integers(problem.w, -3, 3))
    z = draw.operand("z", draw.integers(problem.y))
    y = z if scales[1] and draw.happens(0.3) else draw.operand("y", draw.old(problem.y, 0.0))
    bias = draw.operand("bias", draw.integers((1, problem.y[1], *(1,) * (len(problem.y) - 2))))
    product = ConvolutionForward(problem.geometry, x.tensor, w.tensor, y.tensor)
    total = scales[0] * product.reference({"x": x.values, "w": w.values})["y"] + scales[1] * z.values + bias.values
    result: Array = np.maximum(total, 0) if mode is ActivationMode.RELU else total
    made = Made("Activation", "cudnnSetActivationDescriptor", (Enum(mode), Enum(0), 0.0))
    arguments = [
        draw.scale(scales[0]), *pair(x), *pair(w), problem.made, Enum(int(FORWARD.order[0])), Room(1 << 20),
        draw.scale(scales[1]), *(pair(z) if scales[1] else (0, 0)), *pair(bias), made, *pair(y),
    ]  # fmt: skip
    return Call("cudnnConvolutionBiasActivationForward", arguments, {y.port: result})


def im2col(draw: Draw) -> Call:
    problem = Problem(draw)
    x, w = draw.operand("x", draw.integers(problem.x)), draw.filter("w", np.zeros(problem.w))
    x_channels, taps, outputs = problem.x[1], problem.w[2:], problem.y[2:]
    w.values = np.zeros((problem.w[0], x_channels // problem.groups, *taps))
    result = np.zeros((problem.x[0], *outputs, x_channels, *taps))
    geometry, spatial = problem.geometry, range(len(taps))
    for index in np.ndindex(*outputs, *taps):
        places = [
            index[axis] * geometry.strides[axis] + index[len(taps) + axis] * geometry.dilations[axis]
            - geometry.pre_paddings[axis]
            for axis in spatial
        ]  # fmt: skip
        if all(0 <= place < extent for place, extent in zip(places, problem.x[2:], strict=True)):
            window, tap = index[: len(taps)], index[len(taps) :]
            result[(slice(None), *window, slice(None), *tap)] = x.values[(slice(None), slice(None), *places)]
    rows = int(np.prod(result.shape[: len(taps) + 1]))
    flat = result.reshape(rows, -1)
    columns = Operand("columns", draw.data_type, np.full(flat.shape, np.nan), (flat.shape[1], 1))
    arguments = [*pair(x), DescriptorOf(w), problem.made, AddressOf(columns)]
    return Call("cudnnIm2Col", arguments, {"columns": flat})


FAMILIES: tuple[Family, ...] = (forward, backward_data, backward_filter, bias_activation, im2col)
