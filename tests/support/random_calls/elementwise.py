"""Random calls that compute element by element: sums, copies, binary operations, activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lowdnn import dtypes
from lowdnn.capi.classic_enums import OpTensorOp
from lowdnn.enums import ActivationMode, DataType
from tests.support.random_calls.operands import (
    VECTORS,
    AddressOf,
    Array,
    Call,
    DescriptorOf,
    Draw,
    Enum,
    Family,
    Made,
    Operand,
    blended,
)

_INTEGERS = (DataType.INT8, DataType.INT32)
_COEFFICIENT, _SWISH_BETA = 0.75, 1.5


def pair(operand: Operand) -> list[Any]:
    return [DescriptorOf(operand), AddressOf(operand)]


def repeated(draw: Draw, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Extents that repeat along some axes."""
    return tuple(extent if draw.happens(0.5) else 1 for extent in dims)


def add(draw: Draw) -> Call:
    if draw.happens(0.3):
        draw.data_type = draw.choose(_INTEGERS)
    scales, dims = draw.scales(), draw.dims(3)
    if draw.data_type in _INTEGERS:
        scales = draw.choose(((1.0, 0.0), (2.0, 0.0), (2.0, -3.0)))
    a = draw.operand("a", draw.integers(repeated(draw, dims)))
    c = draw.operand("c", draw.old(dims, 1.0 if draw.data_type in _INTEGERS else scales[1]))
    expected = blended(scales, np.broadcast_to(a.values, dims), c.values)
    arguments = [draw.scale(scales[0]), *pair(a), draw.scale(scales[1]), *pair(c)]
    return Call("cudnnAddTensor", arguments, {"c": expected})


def transform(draw: Draw) -> Call:
    """A copy between types and layouts."""
    scales, dims, source = draw.scales(), draw.dims(3), draw.choose((DataType.FLOAT, DataType.HALF, draw.data_type))
    if draw.happens(0.4):
        # Vectors of channels on either side.
        kind = draw.choose(VECTORS)
        scales, (n, _, *spatial) = draw.choose(((1.0, 0.0), (2.0, 0.0), (2.0, -3.0))), draw.dims(4)
        dims = (n, VECTORS[kind][1] * draw.choose((1, 2)), *spatial)
        source, draw.data_type = draw.choose(((kind, DataType.FLOAT), (DataType.INT8, kind), (kind, kind)))
    x = draw.operand("x", draw.integers(dims), source)
    is_integer = draw.data_type in VECTORS
    y = draw.operand("y", draw.old(dims, 1.0 if is_integer else scales[1]))
    arguments = [draw.scale(scales[0]), *pair(x), draw.scale(scales[1]), *pair(y)]
    return Call("cudnnTransformTensor", arguments, {"y": blended(scales, x.values, y.values)})


def scale(draw: Draw) -> Call:
    y, factor = draw.operand("y", draw.integers(draw.dims(3))), draw.choose((1.0, -0.5, 0.0, 3.0))
    return Call("cudnnScaleTensor", [*pair(y), draw.scale(factor)], {"y": factor * y.values})


def op_tensor(draw: Draw) -> Call:
    operation, passes_nan = draw.choose(OpTensorOp), draw.choose((0, 1))
    alphas, beta, dims = (
        (draw.choose((1.0, 2.0)), draw.choose((1.0, -3.0))),
        draw.choose((0.0, 0.0, 1.0, 2.0)),
        draw.dims(),
    )
    values = draw.integers(dims)
    if operation in (OpTensorOp.MIN, OpTensorOp.MAX):
        values = draw.with_nan(values, 0.6)
    a = draw.operand("a", np.abs(values) if operation is OpTensorOp.SQRT else values)
    b = draw.operand("b", draw.integers(repeated(draw, dims)))
    c = a if draw.happens(0.2) and not np.isnan(values).any() else draw.operand("c", draw.old(dims, beta))
    first, second = alphas[0] * a.values, np.broadcast_to(alphas[1] * b.values, dims)
    keeps = {OpTensorOp.MIN: (np.fmin, np.minimum), OpTensorOp.MAX: (np.fmax, np.maximum)}
    if operation in keeps:
        result = keeps[operation][passes_nan](first, second)
    else:
        result = {
            OpTensorOp.ADD: lambda: first + second,
            OpTensorOp.MUL: lambda: first * second,
            OpTensorOp.SQRT: lambda: np.sqrt(first),
            OpTensorOp.NOT: lambda: 1 - first,
        }[operation]()
    compute = DataType.DOUBLE if draw.data_type is DataType.DOUBLE else DataType.FLOAT
    made = Made("OpTensor", "cudnnSetOpTensorDescriptor", (Enum(operation), Enum(compute), Enum(passes_nan)))
    is_binary = operation not in (OpTensorOp.SQRT, OpTensorOp.NOT)
    others = [draw.scale(alphas[1]), *pair(b)] if is_binary else [0, 0, 0]
    arguments = [made, draw.scale(alphas[0]), *pair(a), *others, draw.scale(beta), *pair(c)]
    return Call("cudnnOpTensor", arguments, {c.port: blended((1.0, beta), result, c.values)})


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


#: y(x) and dy/dx(x).
_ACTIVATIONS: Mapping[ActivationMode, Any] = {
    ActivationMode.SIGMOID: (_sigmoid, lambda x: _sigmoid(x) * (1 - _sigmoid(x))),
    ActivationMode.RELU: (lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
    ActivationMode.TANH: (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    ActivationMode.CLIPPED_RELU: (
        lambda x: np.clip(x, 0, _COEFFICIENT),
        lambda x: ((x > 0) & (x < _COEFFICIENT)) * 1.0,
    ),
    ActivationMode.ELU: (
        lambda x: np.where(x > 0, x, _COEFFICIENT * np.expm1(x)),
        lambda x: np.where(x > 0, 1, _COEFFICIENT * np.exp(x)),
    ),
    ActivationMode.IDENTITY: (lambda x: x, np.ones_like),
    ActivationMode.SWISH: (
        lambda x: x * _sigmoid(x),
        lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    ),
}
_RELUS = (ActivationMode.RELU, ActivationMode.CLIPPED_RELU)


def _activation(mode: ActivationMode, passes_nan: int) -> Made:
    return Made("Activation", "cudnnSetActivationDescriptor", (Enum(mode), Enum(passes_nan), _COEFFICIENT))


def activation_forward(draw: Draw) -> Call:
    mode, passes_nan, scales, dims = draw.choose(ActivationMode), draw.choose((0, 1)), draw.scales(), draw.dims(3)
    values = draw.normal(dims)
    if mode in _RELUS:
        values = draw.with_nan(values, 0.6)
    x = draw.operand("x", values)
    is_in_place = draw.happens(0.3) and not np.isnan(values).any()
    y = x if is_in_place else draw.operand("y", draw.old(dims, scales[1]))
    result = _ACTIVATIONS[mode][0](x.values)
    if not passes_nan:
        result = np.nan_to_num(result, nan=0.0)
    arguments = [_activation(mode, passes_nan), draw.scale(scales[0]), *pair(x), draw.scale(scales[1]), *pair(y)]
    return Call("cudnnActivationForward", arguments, {y.port: blended(scales, result, y.values)}, 1e-5)


def activation_backward(draw: Draw) -> Call:
    mode, scales, dims = draw.choose(ActivationMode), draw.scales(), draw.dims(3)
    x = draw.operand("x", draw.normal(dims))
    function, derivative = _ACTIVATIONS[mode]
    y = draw.operand("y", draw.rounded(function(x.values)))
    dy = draw.operand("dy", draw.integers(dims))
    dx = dy if draw.happens(0.3) else draw.operand("dx", draw.old(dims, scales[1]))
    expected = blended(scales, dy.values * derivative(x.values), dx.values)
    arguments = [
        _activation(mode, 0), draw.scale(scales[0]), *pair(y), *pair(dy), *pair(x), draw.scale(scales[1]), *pair(dx),
    ]  # fmt: skip
    # The derivative is computed from y, as it was rounded.
    return Call("cudnnActivationBackward", arguments, {dx.port: expected}, 4 * epsilon(draw.data_type) + 1e-5)


def epsilon(data_type: DataType) -> float:
    """The relative distance between numbers of a float type."""
    return float(2.0 ** -dtypes.info(data_type).mantissa_bits)


FAMILIES: tuple[Family, ...] = (add, transform, scale, op_tensor, activation_forward, activation_backward)
