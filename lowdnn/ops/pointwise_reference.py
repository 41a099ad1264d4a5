"""The float64 reference of the 52 pointwise modes: one table, mode -> formula.

Operands are converted to the compute type first and the result is rounded to it last; between, floats are float64 and
integers int64. Integer results wrap at the compute type's width (two's complement). In integer arithmetic DIV truncates
toward zero, MOD takes the dividend's sign, FLOOR_MOD the divisor's, and a division by zero gives 0 in all three.
Truth (LOGICAL_*, and t of BINARY_SELECT) is judged on an operand's own value, before any conversion.
With compute type BOOLEAN, comparisons compare the operands' own values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.ops.base import Values, broadcast_to

if TYPE_CHECKING:
    from lowdnn.ops.pointwise import Pointwise, PointwiseOperation

Array = NDArray[Any]
Formula = Callable[..., Array]

_SQRT_2 = math.sqrt(2.0)
_TANH_SCALE = math.sqrt(2.0 / math.pi)
_TANH_CUBIC = 0.044715


def evaluate(operation: PointwiseOperation, inputs: Values) -> Array:
    """The output's values in its dims, rounded to the compute type, from the operands' values by port."""
    mode, compute = operation.mode, operation.pointwise.compute_type
    dims = operation.output.dims
    if mode is PointwiseMode.GEN_INDEX:
        return dtypes.rounded(_indices(dims, operation.pointwise.axis), compute)
    alphas = {"x": operation.alpha1, "b": operation.alpha2}
    operands = [
        broadcast_to(_operand(inputs[port], port, alphas.get(port, 1.0), operation), dims)
        for port in operation.operands
    ]
    with np.errstate(all="ignore"):
        formula = _INTEGER.get(mode, _TABLE[mode]) if _is_integer(compute) else _TABLE[mode]
        return _finish(formula(operation.pointwise, *operands), compute)


def _operand(values: Array, port: str, alpha: float, operation: PointwiseOperation) -> Array:
    """``alpha * values`` in the compute type, or the operand's own values where the mode reads them so."""
    mode, compute = operation.mode, operation.pointwise.compute_type
    is_comparison = PointwiseMode.CMP_EQ <= mode <= PointwiseMode.CMP_LE
    if port == "t" or mode in _LOGICAL or (is_comparison and compute is DataType.BOOLEAN):
        return values
    converted = dtypes.rounded(values, compute)
    if alpha == 1.0:
        return converted
    with np.errstate(all="ignore"):
        return converted * (int(alpha) if _is_integer(compute) else alpha)


def _finish(values: Array, compute: DataType) -> Array:
    if _is_integer(compute):
        return dtypes.wrapped(values, compute)
    return dtypes.rounded(values, compute)


def _is_integer(compute: DataType) -> bool:
    return compute in (DataType.INT32, DataType.INT64)


def _indices(dims: tuple[int, ...], axis: int) -> Array:
    shape = [1] * len(dims)
    shape[axis] = dims[axis]
    return np.broadcast_to(np.arange(dims[axis], dtype=np.int64).reshape(shape), dims)


def _relu_parameters(p: Pointwise) -> list[Any]:
    """Lower clip, upper clip and slope as the compute type holds them: an infinite clip is the largest integer."""
    values = (p.relu_lower_clip, p.relu_upper_clip, p.relu_lower_clip_slope)
    return [dtypes.rounded(np.asarray(value), p.compute_type) for value in values] if p.is_integer else list(values)


def _relu(p: Pointwise, x: Array) -> Array:
    lower, upper, slope = _relu_parameters(p)
    below = lower if slope == 0 else lower + slope * (x - lower)
    return np.where(x > lower, np.minimum(x, upper), np.where(np.isnan(x), x, below))


def _relu_gradient(p: Pointwise, dy: Array, x: Array) -> Array:
    lower, upper, slope = _relu_parameters(p)
    below = np.zeros_like(dy) if slope == 0 else slope * dy
    return np.where(x >= upper, 0, np.where(x > lower, dy, below))


def _sigmoid(x: Array) -> Array:
    return np.where(x >= 0, 1.0 / (1.0 + np.exp(-x)), np.exp(x) / (1.0 + np.exp(x)))


def _sech_squared(x: Array) -> Array:
    """1 - tanh(x)^2 without cancellation."""
    return np.asarray(4.0 * _sigmoid(2.0 * x) * _sigmoid(-2.0 * x))


def _elu(p: Pointwise, x: Array) -> Array:
    return np.where(x > 0, x, p.elu_alpha * np.expm1(x))


def _elu_gradient(p: Pointwise, dy: Array, x: Array) -> Array:
    return np.where(x > 0, dy, dy * p.elu_alpha * np.exp(x))


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


def _erfc(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erfc, otypes=[np.float64])(x))


def _gelu(p: Pointwise, x: Array) -> Array:
    return 0.5 * x * _erfc(-x / _SQRT_2)


def _gelu_gradient(p: Pointwise, dy: Array, x: Array) -> Array:
    density = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    return dy * (0.5 * _erfc(-x / _SQRT_2) + x * density)


def _gelu_tanh(p: Pointwise, x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(_TANH_SCALE * (x + _TANH_CUBIC * x**3)))


def _gelu_tanh_gradient(p: Pointwise, dy: Array, x: Array) -> Array:
    inner = _TANH_SCALE * (x + _TANH_CUBIC * x**3)
    steepness = _sech_squared(inner)
    slope = 0.5 * x * steepness * _TANH_SCALE * (1.0 + 3.0 * _TANH_CUBIC * x * x)
    return np.asarray(dy * (_sigmoid(2.0 * inner) + np.where(steepness == 0, 0.0, slope)))


def _softplus(p: Pointwise, x: Array) -> Array:
    return np.logaddexp(0.0, p.softplus_beta * x) / p.softplus_beta


def _swish(p: Pointwise, x: Array) -> Array:
    return x * _sigmoid(p.swish_beta * x)


def _swish_gradient(p: Pointwise, dy: Array, x: Array) -> Array:
    sigmoid = _sigmoid(p.swish_beta * x)
    return dy * (sigmoid + p.swish_beta * x * sigmoid * _sigmoid(-p.swish_beta * x))


def _truncated_quotient(p: Pointwise, x: Array, b: Array) -> Array:
    """x / b toward zero; NumPy's integer division and remainder by zero give 0."""
    return (x - np.fmod(x, b)) // b


_LOGICAL = frozenset({PointwiseMode.LOGICAL_AND, PointwiseMode.LOGICAL_OR, PointwiseMode.LOGICAL_NOT})

#: Formulas take the parameters, then the operands in the order of ``pointwise.input_ports``.
_TABLE: Mapping[PointwiseMode, Formula] = {
    PointwiseMode.ADD: lambda p, x, b: x + b,
    PointwiseMode.SUB: lambda p, x, b: x - b,
    PointwiseMode.MUL: lambda p, x, b: x * b,
    PointwiseMode.DIV: lambda p, x, b: x / b,
    PointwiseMode.ADD_SQUARE: lambda p, x, b: x + b * b,
    PointwiseMode.MIN: lambda p, x, b: np.minimum(x, b),
    PointwiseMode.MAX: lambda p, x, b: np.maximum(x, b),
    PointwiseMode.MOD: lambda p, x, b: np.fmod(x, b),
    PointwiseMode.FLOOR_MOD: lambda p, x, b: np.mod(x, b),
    PointwiseMode.POW: lambda p, x, b: np.power(x, b),
    PointwiseMode.ATAN2: lambda p, x, b: np.arctan2(x, b),
    PointwiseMode.ABS: lambda p, x: np.abs(x),
    PointwiseMode.CEIL: lambda p, x: np.ceil(x),
    PointwiseMode.COS: lambda p, x: np.cos(x),
    PointwiseMode.EXP: lambda p, x: np.exp(x),
    PointwiseMode.FLOOR: lambda p, x: np.floor(x),
    PointwiseMode.LOG: lambda p, x: np.log(x),
    PointwiseMode.NEG: lambda p, x: -x,
    PointwiseMode.RSQRT: lambda p, x: 1.0 / np.sqrt(x),
    PointwiseMode.SIN: lambda p, x: np.sin(x),
    PointwiseMode.SQRT: lambda p, x: np.sqrt(x),
    PointwiseMode.TAN: lambda p, x: np.tan(x),
    PointwiseMode.ERF: lambda p, x: _erf(x),
    PointwiseMode.IDENTITY: lambda p, x: x,
    PointwiseMode.RECIPROCAL: lambda p, x: 1.0 / x,
    PointwiseMode.RELU_FWD: _relu,
    PointwiseMode.TANH_FWD: lambda p, x: np.tanh(x),
    PointwiseMode.SIGMOID_FWD: lambda p, x: _sigmoid(x),
    PointwiseMode.ELU_FWD: _elu,
    PointwiseMode.GELU_FWD: _gelu,
    PointwiseMode.SOFTPLUS_FWD: _softplus,
    PointwiseMode.SWISH_FWD: _swish,
    PointwiseMode.GELU_APPROX_TANH_FWD: _gelu_tanh,
    PointwiseMode.RELU_BWD: _relu_gradient,
    PointwiseMode.TANH_BWD: lambda p, dy, x: dy * _sech_squared(x),
    PointwiseMode.SIGMOID_BWD: lambda p, dy, x: dy * (_sigmoid(x) * _sigmoid(-x)),
    PointwiseMode.ELU_BWD: _elu_gradient,
    PointwiseMode.GELU_BWD: _gelu_gradient,
    PointwiseMode.SOFTPLUS_BWD: lambda p, dy, x: dy * _sigmoid(p.softplus_beta * x),
    PointwiseMode.SWISH_BWD: _swish_gradient,
    PointwiseMode.GELU_APPROX_TANH_BWD: _gelu_tanh_gradient,
    PointwiseMode.CMP_EQ: lambda p, x, b: x == b,
    PointwiseMode.CMP_NEQ: lambda p, x, b: x != b,
    PointwiseMode.CMP_GT: lambda p, x, b: x > b,
    PointwiseMode.CMP_GE: lambda p, x, b: x >= b,
    PointwiseMode.CMP_LT: lambda p, x, b: x < b,
    PointwiseMode.CMP_LE: lambda p, x, b: x <= b,
    PointwiseMode.LOGICAL_AND: lambda p, x, b: (x != 0) & (b != 0),
    PointwiseMode.LOGICAL_OR: lambda p, x, b: (x != 0) | (b != 0),
    PointwiseMode.LOGICAL_NOT: lambda p, x: x == 0,
    PointwiseMode.BINARY_SELECT: lambda p, x, b, t: np.asarray(np.where(t != 0, x, b)),
}

_INTEGER: Mapping[PointwiseMode, Formula] = {PointwiseMode.DIV: _truncated_quotient}
