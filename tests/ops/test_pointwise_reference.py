"""The reference itself, against formulas written down a second time: Python's math module, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.enums import DataType, PointwiseMode
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation, input_ports, is_backward
from lowdnn.ops.tensor import Tensor, packed_strides
from tests.support.data import fresh_seed

M = PointwiseMode
INF, NAN = math.inf, math.nan


def evaluate(
    arithmetic: Pointwise,
    *operands: Any,
    data_type: DataType = DataType.DOUBLE,
    alpha1: float = 1.0,
    alpha2: float = 1.0,
) -> NDArray[Any]:
    """The reference's output for operands in the order of ``input_ports``."""
    arrays = [np.asarray(operand) for operand in operands]
    dims = np.broadcast_shapes(*(array.shape for array in arrays))
    tensors = [Tensor(uid, data_type, a.shape, packed_strides(a.shape), 16) for uid, a in enumerate(arrays)]
    output = Tensor(99, data_type, dims, packed_strides(dims), 16)
    ports = dict(zip(input_ports(arithmetic.mode), tensors, strict=True))
    target = "dx" if is_backward(arithmetic.mode) else "y"
    operation = PointwiseOperation(
        arithmetic,
        x=ports.get("x"),
        b=ports.get("b"),
        t=ports.get("t"),
        dy=ports.get("dy"),
        y=output if target == "y" else None,
        dx=output if target == "dx" else None,
        alpha1=alpha1,
        alpha2=alpha2,
    )
    return operation.reference(dict(zip(input_ports(arithmetic.mode), arrays, strict=True)))[target]


def double(mode: PointwiseMode, *operands: Any, **parameters: Any) -> NDArray[Any]:
    return evaluate(Pointwise(mode, DataType.DOUBLE, **parameters), *operands)


def integer(
    mode: PointwiseMode, *operands: Any, compute_type: DataType = DataType.INT32, **parameters: Any
) -> list[int]:
    result = evaluate(Pointwise(mode, compute_type, **parameters), *operands, data_type=compute_type)
    assert result.dtype == np.int64
    return [int(value) for value in result]


def gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


UNARY: Mapping[PointwiseMode, Callable[[float], float]] = {
    M.ABS: abs,
    M.CEIL: math.ceil,
    M.COS: math.cos,
    M.EXP: math.exp,
    M.FLOOR: math.floor,
    M.LOG: lambda x: math.log(x) if x > 0 else NAN,
    M.NEG: lambda x: -x,
    M.RSQRT: lambda x: 1 / math.sqrt(x) if x > 0 else NAN,
    M.SIN: math.sin,
    M.SQRT: lambda x: math.sqrt(x) if x >= 0 else NAN,
    M.TAN: math.tan,
    M.ERF: math.erf,
    M.IDENTITY: lambda x: x,
    M.RECIPROCAL: lambda x: 1 / x,
    M.RELU_FWD: lambda x: max(x, 0.0),
    M.TANH_FWD: math.tanh,
    M.SIGMOID_FWD: lambda x: 1 / (1 + math.exp(-x)),
    M.ELU_FWD: lambda x: x if x > 0 else math.exp(x) - 1,
    M.GELU_FWD: lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))),
    M.SOFTPLUS_FWD: lambda x: math.log(1 + math.exp(x)),
    M.SWISH_FWD: lambda x: x / (1 + math.exp(-x)),
    M.GELU_APPROX_TANH_FWD: gelu_tanh,
    M.LOGICAL_NOT: lambda x: float(x == 0),
}
BINARY: Mapping[PointwiseMode, Callable[[float, float], float]] = {
    M.ADD: lambda x, b: x + b,
    M.SUB: lambda x, b: x - b,
    M.MUL: lambda x, b: x * b,
    M.DIV: lambda x, b: x / b,
    M.ADD_SQUARE: lambda x, b: x + b * b,
    M.MIN: min,
    M.MAX: max,
    M.MOD: math.fmod,
    M.FLOOR_MOD: lambda x, b: x % b,
    M.POW: lambda x, b: NAN if isinstance(x**b, complex) else x**b,
    M.ATAN2: math.atan2,
    M.CMP_EQ: lambda x, b: float(x == b),
    M.CMP_NEQ: lambda x, b: float(x != b),
    M.CMP_GT: lambda x, b: float(x > b),
    M.CMP_GE: lambda x, b: float(x >= b),
    M.CMP_LT: lambda x, b: float(x < b),
    M.CMP_LE: lambda x, b: float(x <= b),
    M.LOGICAL_AND: lambda x, b: float(x != 0 and b != 0),
    M.LOGICAL_OR: lambda x, b: float(x != 0 or b != 0),
}
FORWARD_OF = {mode: PointwiseMode(mode - 100) for mode in PointwiseMode if is_backward(mode)}


def test_every_mode_is_tested() -> None:
    assert {*UNARY, *BINARY, *FORWARD_OF, M.GEN_INDEX, M.BINARY_SELECT} == set(PointwiseMode)


@pytest.mark.parametrize("mode", UNARY)
def test_unary_formulas(mode: PointwiseMode) -> None:
    seed = fresh_seed()
    x = np.random.default_rng(seed).normal(0, 2, 200)
    np.testing.assert_allclose(
        double(mode, x), [UNARY[mode](v) for v in x.tolist()], 1e-13, 1e-15, err_msg=f"seed {seed}"
    )


@pytest.mark.parametrize("mode", BINARY)
def test_binary_formulas(mode: PointwiseMode) -> None:
    seed = fresh_seed()
    x, b = np.random.default_rng(seed).normal(0, 2, (2, 200))
    b[:20] = x[:20]
    expected = [BINARY[mode](u, v) for u, v in zip(x.tolist(), b.tolist(), strict=True)]
    np.testing.assert_allclose(double(mode, x, b), expected, 1e-13, 1e-15, err_msg=f"seed {seed}")


@pytest.mark.parametrize("mode", FORWARD_OF)
def test_gradients_are_those_of_the_forward_formulas(mode: PointwiseMode) -> None:
    seed = fresh_seed()
    dy, x = np.random.default_rng(seed).normal(0, 2, (2, 200))
    x = np.where(np.abs(x) < 1e-3, 1.0, x)
    parameters = {"elu_alpha": 0.7, "softplus_beta": 1.5, "swish_beta": 0.8, "relu_lower_clip_slope": 0.25}
    step = 1e-6
    forward = FORWARD_OF[mode]
    slope = (double(forward, x + step, **parameters) - double(forward, x - step, **parameters)) / (2 * step)
    got = double(mode, dy, x, **parameters)
    np.testing.assert_allclose(got, dy * slope, rtol=1e-6, atol=1e-7, err_msg=f"seed {seed}")


def test_relu_clips_and_slope() -> None:
    x = np.array([-3.0, 0.5, 1.0, 2.0, 6.0, 9.0, NAN, INF, -INF])
    got = double(M.RELU_FWD, x, relu_lower_clip=1.0, relu_upper_clip=6.0, relu_lower_clip_slope=0.5)
    np.testing.assert_array_equal(got, [-1.0, 0.75, 1.0, 2.0, 6.0, 6.0, NAN, 6.0, -INF])
    np.testing.assert_array_equal(double(M.RELU_FWD, x), [0, 0.5, 1, 2, 6, 9, NAN, INF, 0])


def test_relu_gradient_at_the_clips() -> None:
    x = np.array([-1.0, 0.0, 3.0, 6.0, 7.0, NAN])
    dy = np.full(6, 8.0)
    got = double(M.RELU_BWD, dy, x, relu_upper_clip=6.0, relu_lower_clip_slope=0.25)
    np.testing.assert_array_equal(got, [2, 2, 8, 0, 0, 2])
    np.testing.assert_array_equal(double(M.RELU_BWD, np.full(2, INF), np.array([-1.0, 1.0])), [0, INF])


def test_parameters_of_activations() -> None:
    x = np.array([-1.0, 2.0])
    np.testing.assert_allclose(double(M.ELU_FWD, x, elu_alpha=3.0), [3 * math.expm1(-1), 2])
    np.testing.assert_allclose(double(M.SOFTPLUS_FWD, x, softplus_beta=2.0), np.log1p(np.exp(2 * x)) / 2)
    np.testing.assert_allclose(double(M.SWISH_FWD, x, swish_beta=2.0), x / (1 + np.exp(-2 * x)))


def test_large_arguments_neither_overflow_nor_cancel() -> None:
    x = np.array([-800.0, 800.0])
    np.testing.assert_array_equal(double(M.SOFTPLUS_FWD, x), [0, 800])
    np.testing.assert_array_equal(double(M.SIGMOID_FWD, x), [0, 1])
    np.testing.assert_array_equal(double(M.SWISH_FWD, x), [0, 800])
    small = double(M.GELU_FWD, np.array([-10.0]))[0]
    assert small == pytest.approx(-10 * 0.5 * math.erfc(10 / math.sqrt(2)), rel=1e-12)


def test_gradients_of_large_arguments() -> None:
    x = np.array([-40.0, 40.0])
    np.testing.assert_allclose(double(M.SIGMOID_BWD, np.ones(2), x), [math.exp(-40)] * 2, rtol=1e-14)
    np.testing.assert_allclose(double(M.TANH_BWD, np.ones(2), x), [4 * math.exp(-80)] * 2, rtol=1e-14)
    huge = np.array([-INF, -1e200, 1e200, INF])
    assert double(M.GELU_APPROX_TANH_BWD, np.ones(4), huge).tolist() == [0, 0, 1, 1]


def test_an_infinite_clip_in_integers_is_the_largest_integer() -> None:
    x = np.array([2**31 - 1, 2**31 - 2])
    assert integer(M.RELU_FWD, x) == x.tolist()
    assert integer(M.RELU_BWD, np.array([5, 5]), x) == [0, 5]


def test_nan_wins_in_min_and_max() -> None:
    x, b = np.array([NAN, 1.0, NAN]), np.array([1.0, NAN, NAN])
    assert np.isnan(double(M.MIN, x, b)).all()
    assert np.isnan(double(M.MAX, x, b)).all()


def test_nan_compares_unequal_to_everything() -> None:
    x, b = np.array([NAN, NAN]), np.array([NAN, 1.0])
    for mode in (M.CMP_EQ, M.CMP_GT, M.CMP_GE, M.CMP_LT, M.CMP_LE):
        assert list(double(mode, x, b)) == [0, 0]
    assert list(double(M.CMP_NEQ, x, b)) == [1, 1]


def test_float_division_and_remainder_by_zero() -> None:
    x, zero = np.array([1.0, -1.0, 0.0]), np.zeros(3)
    np.testing.assert_array_equal(double(M.DIV, x, zero), [INF, -INF, NAN])
    assert np.isnan(double(M.MOD, x, zero)).all()
    assert np.isnan(double(M.FLOOR_MOD, x, zero)).all()


def test_remainder_signs() -> None:
    x, b = np.array([7.0, -7.0, 7.0, -7.0]), np.array([3.0, 3.0, -3.0, -3.0])
    np.testing.assert_array_equal(double(M.MOD, x, b), [1, -1, 1, -1])
    np.testing.assert_array_equal(double(M.FLOOR_MOD, x, b), [1, 2, -2, -1])
    assert integer(M.MOD, x.astype(np.int64), b.astype(np.int64)) == [1, -1, 1, -1]
    assert integer(M.FLOOR_MOD, x.astype(np.int64), b.astype(np.int64)) == [1, 2, -2, -1]


def test_integer_division() -> None:
    x, b = np.array([7, -7, 7, -7, 5, 0, -(2**31)]), np.array([2, 2, -2, -2, 0, 0, -1])
    assert integer(M.DIV, x, b) == [3, -3, -3, 3, 0, 0, -(2**31)]
    assert integer(M.MOD, x[:6], b[:6]) == [1, -1, 1, -1, 0, 0]
    assert integer(M.FLOOR_MOD, x[:6], b[:6]) == [1, 1, -1, -1, 0, 0]


def test_integer_arithmetic_wraps() -> None:
    top = 2**31 - 1
    assert integer(M.ADD, np.array([top]), np.array([1])) == [-(2**31)]
    assert integer(M.MUL, np.array([2**16]), np.array([2**16])) == [0]
    assert integer(M.ABS, np.array([-(2**31)])) == [-(2**31)]
    wide = 2**63 - 1
    assert integer(M.ADD, np.array([wide]), np.array([1]), compute_type=DataType.INT64) == [-(2**63)]


def test_int64_is_not_computed_in_floats() -> None:
    big = 2**53 + 1
    assert integer(M.ADD, np.array([big]), np.array([2]), compute_type=DataType.INT64) == [big + 2]
    assert integer(M.RELU_FWD, np.array([big, -1]), compute_type=DataType.INT64) == [big, 0]
    assert integer(M.CMP_EQ, np.array([big]), np.array([big - 1]), compute_type=DataType.INT64) == [0]


def test_operands_are_converted_to_the_compute_type() -> None:
    assert integer(M.ADD, np.array([2.5]), np.array([1e12])) == [-(2**31) + 1]
    third = evaluate(Pointwise(M.IDENTITY, DataType.FLOAT), np.array([1 / 3]))[0]
    assert third == float(np.float32(1 / 3))


def test_results_are_rounded_to_the_compute_type() -> None:
    x = np.array([1.0])
    for compute_type, epsilon in ((DataType.HALF, 2.0**-10), (DataType.BFLOAT16, 2.0**-7), (DataType.FLOAT, 2.0**-23)):
        got = evaluate(Pointwise(M.ADD, compute_type), x, np.array([epsilon * 0.75]))[0]
        assert got == 1 + epsilon
    assert np.isinf(evaluate(Pointwise(M.ADD, DataType.HALF), np.array([65504.0]), np.array([65504.0]))[0])


def test_alphas() -> None:
    x, b = np.array([3.0]), np.array([5.0])
    assert evaluate(Pointwise(M.SUB, DataType.DOUBLE), x, b, alpha1=2.0, alpha2=0.5)[0] == 3.5
    assert evaluate(Pointwise(M.NEG, DataType.DOUBLE), x, alpha1=2.0)[0] == -6
    arithmetic = Pointwise(M.MUL, DataType.INT32)
    got = evaluate(arithmetic, np.array([3]), np.array([5]), data_type=DataType.INT32, alpha1=-2.0)
    assert got[0] == -30
    for factor, expected in ((3.0, 6), (-2.0, -4)):  # 2.25 is taken as an integer
        assert evaluate(Pointwise(M.IDENTITY, DataType.INT32), np.array([2.25]), alpha1=factor)[0] == expected


def test_truth_is_judged_before_conversion() -> None:
    small = np.array([0.25, 0.0, NAN])
    assert list(evaluate(Pointwise(M.LOGICAL_NOT, DataType.INT32), small)) == [0, 1, 0]
    chosen = evaluate(Pointwise(M.BINARY_SELECT, DataType.INT32), np.array([1, 1, 1]), np.array([2, 2, 2]), small)
    assert list(chosen) == [1, 2, 1]


def test_boolean_comparisons_compare_the_operands_themselves() -> None:
    got = evaluate(Pointwise(M.CMP_GT, DataType.BOOLEAN), np.array([3, 2, 1]), np.array([2, 2, 2]))
    assert got.dtype == np.bool_
    assert list(got) == [True, False, False]


def test_gen_index() -> None:
    x = np.zeros((2, 3))
    np.testing.assert_array_equal(double(M.GEN_INDEX, x, axis=1), [[0, 1, 2], [0, 1, 2]])
    np.testing.assert_array_equal(double(M.GEN_INDEX, x, axis=0), [[0, 0, 0], [1, 1, 1]])


def test_broadcasting() -> None:
    x, b = np.arange(6.0).reshape(2, 3), np.array([[10.0], [20.0]])
    np.testing.assert_array_equal(double(M.ADD, x, b), x + b)
