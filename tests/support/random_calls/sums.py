"""Random calls that sum over elements: softmax, reductions, pooling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lowdnn.capi.classic_enums import IndicesType, PoolingMode, SoftmaxAlgorithm, SoftmaxMode
from lowdnn.enums import DataType, NanPropagation, PaddingMode, ReduceTensorOp, ResampleMode
from lowdnn.ops.resample import Resample
from lowdnn.ops.resample_backward import ResampleBackward
from lowdnn.ops.resample_forward import ResampleForward
from lowdnn.ops.tensor import packed_strides
from tests.support.random_calls.elementwise import pair
from tests.support.random_calls.operands import (
    AddressOf,
    Array,
    Call,
    Draw,
    Enum,
    Family,
    Made,
    Operand,
    Room,
    blended,
)


def softmax_forward(draw: Draw) -> Call:
    algorithm, mode, scales, dims = draw.choose(SoftmaxAlgorithm), draw.choose(SoftmaxMode), draw.scales(), draw.dims()
    x = draw.operand("x", draw.normal(dims))
    y = x if draw.happens(0.3) else draw.operand("y", draw.old(dims, scales[1]))
    result = _softmax(x.values, algorithm, mode)
    arguments = [Enum(algorithm), Enum(mode), draw.scale(scales[0]), *pair(x), draw.scale(scales[1]), *pair(y)]
    return Call("cudnnSoftmaxForward", arguments, {y.port: blended(scales, result, y.values)}, 2e-5)


def softmax_backward(draw: Draw) -> Call:
    algorithm, mode, scales, dims = draw.choose(SoftmaxAlgorithm), draw.choose(SoftmaxMode), draw.scales(), draw.dims()
    y = draw.operand("y", draw.rounded(_softmax(draw.normal(dims), algorithm, mode)))
    dy, axes = draw.operand("dy", draw.integers(dims)), _axes(mode, len(dims))
    dx = dy if draw.happens(0.3) else draw.operand("dx", draw.old(dims, scales[1]))
    if algorithm is SoftmaxAlgorithm.LOG:
        result = dy.values - np.exp(y.values) * dy.values.sum(axes, keepdims=True)
    else:
        result = y.values * (dy.values - (y.values * dy.values).sum(axes, keepdims=True))
    arguments = [
        Enum(algorithm), Enum(mode), draw.scale(scales[0]), *pair(y), *pair(dy), draw.scale(scales[1]), *pair(dx),
    ]  # fmt: skip
    return Call("cudnnSoftmaxBackward", arguments, {dx.port: blended(scales, result, dx.values)}, 1e-4)


def _axes(mode: SoftmaxMode, rank: int) -> tuple[int, ...]:
    return (1,) if mode is SoftmaxMode.CHANNEL else tuple(range(1, rank))


def _softmax(x: Array, algorithm: SoftmaxAlgorithm, mode: SoftmaxMode) -> Array:
    axes = _axes(mode, x.ndim)
    powers = np.exp(x - x.max(axes, keepdims=True))
    y = powers / powers.sum(axes, keepdims=True)
    return np.asarray(np.log(y) if algorithm is SoftmaxAlgorithm.LOG else y)


#: The result over flattened elements, the last axis.
_REDUCTIONS: Mapping[ReduceTensorOp, Any] = {
    ReduceTensorOp.ADD: lambda a: a.sum(-1),
    ReduceTensorOp.MUL: lambda a: a.prod(-1),
    ReduceTensorOp.MIN: lambda a: a.min(-1),
    ReduceTensorOp.MAX: lambda a: a.max(-1),
    ReduceTensorOp.AMAX: lambda a: abs(a).max(-1),
    ReduceTensorOp.AVG: lambda a: a.mean(-1),
    ReduceTensorOp.NORM1: lambda a: abs(a).sum(-1),
    ReduceTensorOp.NORM2: lambda a: np.sqrt((a * a).sum(-1)),
    ReduceTensorOp.MUL_NO_ZEROS: lambda a: np.where(a == 0, 1, a).prod(-1),
}
_NEUTRAL = {ReduceTensorOp.MIN: np.inf, ReduceTensorOp.MAX: -np.inf, ReduceTensorOp.AMAX: 0.0}
_INDEX_TYPES = {
    IndicesType.BITS_8: DataType.UINT8,
    IndicesType.BITS_32: DataType.INT32,
    IndicesType.BITS_64: DataType.INT64,
}


def reduce_tensor(draw: Draw) -> Call:
    operation, passes_nan, scales, dims = draw.choose(ReduceTensorOp), draw.choose((0, 1)), draw.scales(), draw.dims(3)
    kept = tuple(extent if draw.happens(0.4) else 1 for extent in dims)
    has_indices = operation in (ReduceTensorOp.MIN, ReduceTensorOp.MAX) and draw.happens(0.6)
    values = draw.integers(dims, *((-1, 1) if operation.name.startswith("MUL") else (-4, 4)))
    a = draw.operand("a", draw.with_nan(values, 0.5) if operation in _NEUTRAL else values)
    c = draw.operand("c", draw.old(kept, scales[1]))
    axes = [axis for axis in range(len(dims)) if kept[axis] != dims[axis]]
    rest = [axis for axis in range(len(dims)) if axis not in axes]
    flat = a.values.transpose(*rest, *axes).reshape(*(dims[axis] for axis in rest), -1)
    if operation in _NEUTRAL and not passes_nan:
        flat = np.where(np.isnan(flat), _NEUTRAL[operation], flat)
    with np.errstate(all="ignore"):
        result = blended(scales, _REDUCTIONS[operation](flat).reshape(kept), c.values)
    kind = draw.choose(_INDEX_TYPES)
    places = (np.argmin if operation is ReduceTensorOp.MIN else np.argmax)(flat, -1).reshape(kept)
    old = draw.integers(kept, 0, 9)
    indices = Operand("indices", _INDEX_TYPES[kind], old, packed_strides(kept))
    compute = DataType.DOUBLE if draw.data_type is DataType.DOUBLE else DataType.FLOAT
    made = Made(
        "ReduceTensor", "cudnnSetReduceTensorDescriptor",
        (Enum(operation), Enum(compute), Enum(passes_nan), Enum(has_indices), Enum(kind)),
    )  # fmt: skip
    head = [made, AddressOf(indices), 8 * indices.span] if has_indices else [made, 0, 0]
    arguments = [*head, Room(1 << 16), draw.scale(scales[0]), *pair(a), draw.scale(scales[1]), *pair(c)]
    expected = {"c": result} | ({"indices": places.astype(np.float64)} if has_indices else {})
    return Call("cudnnReduceTensor", arguments, expected, 1e-6)


def backward_bias(draw: Draw) -> Call:
    scales, dims = draw.scales(), draw.dims()
    dy = draw.operand("dy", draw.integers(dims))
    row = (1, dims[1], *(1,) * (len(dims) - 2))
    db = draw.operand("db", draw.old(row, scales[1]))
    result = dy.values.sum((0, *range(2, len(dims)))).reshape(row)
    arguments = [draw.scale(scales[0]), *pair(dy), draw.scale(scales[1]), *pair(db)]
    return Call("cudnnConvolutionBackwardBias", arguments, {"db": blended(scales, result, db.values)})


_POOLING = {
    PoolingMode.MAX: (ResampleMode.MAXPOOL, PaddingMode.NEG_INF_PAD),
    PoolingMode.MAX_DETERMINISTIC: (ResampleMode.MAXPOOL, PaddingMode.NEG_INF_PAD),
    PoolingMode.AVERAGE_COUNT_INCLUDE_PADDING: (ResampleMode.AVGPOOL_INCLUDE_PADDING, PaddingMode.ZERO_PAD),
    PoolingMode.AVERAGE_COUNT_EXCLUDE_PADDING: (ResampleMode.AVGPOOL_EXCLUDE_PADDING, PaddingMode.ZERO_PAD),
}


def _pooling(draw: Draw) -> tuple[Made, Resample, tuple[int, ...], tuple[int, ...]]:
    """The descriptor, its meaning, and the dims of x and y."""
    dims, mode, passes_nan = draw.dims(), draw.choose(PoolingMode), draw.choose((0, 1))
    windows = tuple(draw.rng.randint(1, min(3, extent)) for extent in dims[2:])
    pads = tuple(draw.rng.randint(0, window - 1) for window in windows)
    strides = tuple(draw.rng.randint(1, 3) for _ in windows)
    arguments = (Enum(mode), Enum(passes_nan), len(windows), windows, pads, strides)
    compute = DataType.DOUBLE if draw.data_type is DataType.DOUBLE else DataType.FLOAT
    resample_mode, padding_mode = _POOLING[mode]
    nan = NanPropagation(passes_nan)
    resample = Resample(len(windows), windows, strides, pads, pads, resample_mode, compute, nan, padding_mode)
    outputs = (
        1 + (extent + 2 * pad - window) // stride
        for extent, window, pad, stride in zip(dims[2:], windows, pads, strides, strict=True)
    )
    return Made("Pooling", "cudnnSetPoolingNdDescriptor", arguments), resample, dims, (*dims[:2], *outputs)


def pooling_forward(draw: Draw) -> Call:
    made, resample, dims, outputs = _pooling(draw)
    scales, values = draw.scales(), draw.integers(dims)
    x = draw.operand("x", draw.with_nan(values) if resample.mode is ResampleMode.MAXPOOL else values)
    y = draw.operand("y", draw.old(outputs, scales[1]))
    with np.errstate(all="ignore"):
        result = ResampleForward(resample, x.tensor, y.tensor).reference({"x": x.values})["y"]
    arguments = [made, draw.scale(scales[0]), *pair(x), draw.scale(scales[1]), *pair(y)]
    return Call("cudnnPoolingForward", arguments, {"y": blended(scales, result, y.values)}, 1e-6)


def pooling_backward(draw: Draw) -> Call:
    made, resample, dims, outputs = _pooling(draw)
    scales = draw.scales()
    x, dy = draw.operand("x", draw.integers(dims)), draw.operand("dy", draw.integers(outputs))
    y, dx = draw.operand("y", draw.integers(outputs)), draw.operand("dx", draw.old(dims, scales[1]))
    image = x.tensor if resample.mode is ResampleMode.MAXPOOL else None
    operation = ResampleBackward(resample, dy.tensor, dx.tensor, x=image)
    result = operation.reference({"x": x.values, "dy": dy.values})["dx"]
    arguments = [made, draw.scale(scales[0]), *pair(y), *pair(dy), *pair(x), draw.scale(scales[1]), *pair(dx)]
    return Call("cudnnPoolingBackward", arguments, {"dx": blended(scales, result, dx.values)}, 1e-6)


FAMILIES: tuple[Family, ...] = (
    softmax_forward,
    softmax_backward,
    reduce_tensor,
    backward_bias,
    pooling_forward,
    pooling_backward,
)
