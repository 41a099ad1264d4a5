"""Norms, forward and backward: the references against the formulas and against differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.enums import DataType, NormFwdPhase, NormMode
from lowdnn.ops.norm import NormShape, unbiased_factor
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError, NotSupportedError, ShapeMismatchError, UnsupportedDataTypeError
from tests.support.data import fresh_seed
from tests.support.errors import raises

M = NormMode
EPSILON = 0.01
X = (2, 6, 3, 2)

#: (mode, dims of the scale, groups, rows of x as indices of what one mean is taken over)
FORMS: list[tuple[NormMode, tuple[int, ...], int, Callable[[NDArray[Any]], list[NDArray[Any]]]]] = [
    (M.LAYER_NORM, (1, 6, 3, 2), 0, lambda x: [x[n] for n in range(2)]),
    (M.LAYER_NORM, (1, 1, 3, 2), 0, lambda x: [x[n, c] for n in range(2) for c in range(6)]),
    (M.RMS_NORM, (1, 6, 3, 2), 0, lambda x: [x[n] for n in range(2)]),
    (M.ADA_LAYER_NORM, (2, 6, 1, 2), 0, lambda x: [x[n, :, h] for n in range(2) for h in range(3)]),
    (M.INSTANCE_NORM, (1, 6, 1, 1), 0, lambda x: [x[n, c] for n in range(2) for c in range(6)]),
    (M.BATCH_NORM, (1, 6, 1, 1), 0, lambda x: [x[:, c] for c in range(6)]),
    (M.GROUP_NORM, (1, 6, 1, 1), 3, lambda x: [x[n, g : g + 2] for n in range(2) for g in (0, 2, 4)]),
]


def tensor(uid: int, dims: tuple[int, ...], data_type: DataType = DataType.DOUBLE) -> Tensor:
    return Tensor(uid, data_type, dims, packed_strides(dims), 16, name=f"t{uid}")


def forward(mode: NormMode, scale_dims: tuple[int, ...] | None, groups: int = 0, **changes: Any) -> NormForward:
    stats = NormShape(mode, X, scale_dims, groups).stats_dims if groups or mode is not M.GROUP_NORM else (2, 3, 1, 1)
    ports: dict[str, Any] = {
        "x": tensor(1, X),
        "epsilon": replace(tensor(2, (1,)), constant_value=EPSILON),
        "y": tensor(3, X),
        "scale": None if scale_dims is None else tensor(4, scale_dims),
        "bias": None if scale_dims is None else tensor(5, scale_dims),
        "mean": None if mode is M.RMS_NORM else tensor(6, stats),
        "inv_variance": tensor(7, stats),
        "phase": NormFwdPhase.TRAINING,
    }
    return NormForward(mode, **(ports | changes))


def backward(mode: NormMode, scale_dims: tuple[int, ...], groups: int, **changes: Any) -> NormBackward:
    stats = NormShape(mode, X, scale_dims, groups).stats_dims
    ports: dict[str, Any] = {
        "x": tensor(1, X),
        "dy": tensor(2, X),
        "dx": tensor(3, X),
        "mean": None if mode is M.RMS_NORM else tensor(4, stats),
        "inv_variance": tensor(5, stats),
        "scale": tensor(6, scale_dims),
        "dscale": tensor(7, scale_dims),
        "dbias": tensor(8, scale_dims),
    }
    return NormBackward(mode, **(ports | changes))


def values(rng: np.random.Generator, scale_dims: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    drawn = {"x": rng.normal(2, 3, X), "scale": rng.normal(1, 1, scale_dims), "bias": rng.normal(0, 1, scale_dims)}
    return drawn | {"epsilon": np.array([EPSILON])}


@pytest.mark.parametrize(("mode", "scale_dims", "groups", "rows"), FORMS)
def test_forward_is_the_formula(
    mode: NormMode, scale_dims: tuple[int, ...], groups: int, rows: Callable[[NDArray[Any]], list[NDArray[Any]]]
) -> None:
    inputs = values(np.random.default_rng(fresh_seed()), scale_dims)
    results = forward(mode, scale_dims, groups).reference(inputs)
    expected = inputs["x"].copy()
    means, inverses = [], []
    for row in rows(expected):
        mean = 0.0 if mode is M.RMS_NORM else float(np.mean(row))
        inverse = 1 / np.sqrt(np.mean((row - mean) ** 2) + EPSILON)
        row[...] = (row - mean) * inverse
        means.append(mean)
        inverses.append(inverse)
    np.testing.assert_allclose(results["y"], expected * inputs["scale"] + inputs["bias"], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(results["inv_variance"].ravel(), inverses, rtol=1e-12)
    if mode is not M.RMS_NORM:
        np.testing.assert_allclose(results["mean"].ravel(), means, rtol=1e-12)


@pytest.mark.parametrize(("mode", "scale_dims", "groups", "rows"), FORMS)
def test_backward_agrees_with_differences(
    mode: NormMode, scale_dims: tuple[int, ...], groups: int, rows: Callable[[NDArray[Any]], list[NDArray[Any]]]
) -> None:
    rng = np.random.default_rng(fresh_seed())
    inputs, dy = values(rng, scale_dims), rng.normal(0, 1, X)
    operation = forward(mode, scale_dims, groups)
    found = operation.reference(inputs)
    statistics = {port: found[port] for port in ("mean", "inv_variance") if port in found}
    gradients = backward(mode, scale_dims, groups).reference(inputs | statistics | {"dy": dy})
    step = 1e-5
    for port, gradient in (("x", "dx"), ("scale", "dscale"), ("bias", "dbias")):
        direction = rng.normal(0, 1, inputs[port].shape)
        ends = [operation.reference(inputs | {port: inputs[port] + s * direction})["y"] for s in (step, -step)]
        slope = float(((ends[0] - ends[1]) * dy).sum()) / (2 * step)
        assert slope == pytest.approx(float((gradients[gradient] * direction).sum()), rel=1e-6, abs=1e-7), port


def test_without_scale_all_but_the_first_axis_are_normalised() -> None:
    x = np.random.default_rng(fresh_seed()).normal(3, 2, X)
    y = forward(M.LAYER_NORM, None).reference({"x": x, "epsilon": np.array([EPSILON])})["y"]
    expected = [(row - row.mean()) / np.sqrt(row.var() + EPSILON) for row in x]
    np.testing.assert_allclose(y, np.array(expected), rtol=1e-12)


def test_the_unbiased_variance_of_one_element_is_that_of_one() -> None:
    assert [unbiased_factor(count) for count in (1, 2, 5)] == [1, 2, 1.25]


def test_running_statistics() -> None:
    dims, rng = (1, 6, 1, 1), np.random.default_rng(fresh_seed())
    running = {f"{way}_running_{name}": tensor(10 + i, dims) for i, (way, name) in enumerate(RUNNING)}
    factor = replace(tensor(20, (1,)), constant_value=0.25)
    operation = forward(M.BATCH_NORM, dims, exp_avg_factor=factor, **running)
    before = {port: rng.normal(1, 1, dims) for port in running if port.startswith("input")}
    inputs = values(rng, dims) | before | {"exp_avg_factor": np.array([0.25])}
    results = operation.reference(inputs)
    now = {"mean": inputs["x"].mean((0, 2, 3)), "var": inputs["x"].var((0, 2, 3), ddof=1)}
    for name, value in now.items():
        expected = 0.75 * before[f"input_running_{name}"].ravel() + 0.25 * value
        np.testing.assert_allclose(results[f"output_running_{name}"].ravel(), expected, rtol=1e-12)


RUNNING = [("input", "mean"), ("input", "var"), ("output", "mean"), ("output", "var")]


def test_checks() -> None:
    dims = (1, 6, 1, 1)
    with raises(ShapeMismatchError, "norm_forward.scale.dims", expected="[1, 6, 1, 1]", got="[1, 1, 3, 2]"):
        forward(M.BATCH_NORM, (1, 1, 3, 2))
    with raises(ShapeMismatchError, "norm_forward.scale.dims[2]", expected="1 or 3", got="2"):
        forward(M.LAYER_NORM, (1, 6, 2, 2))
    with raises(ShapeMismatchError, "norm_forward.mean.dims", expected="[2, 1, 1, 1]", got="[2]"):
        forward(M.LAYER_NORM, (1, 6, 3, 2), mean=tensor(6, (2,)))
    with raises(BadParamError, "norm_forward.groups", expected="a divisor of 6", got="4"):
        forward(M.GROUP_NORM, dims, 4)
    with raises(BadParamError, "norm_forward.epsilon", expected="by-value or constant", got="t2"):
        forward(M.LAYER_NORM, dims, epsilon=tensor(2, (1,)))
    with raises(BadParamError, "norm_forward.inv_variance", expected="TRAINING", got="none"):
        forward(M.LAYER_NORM, (1, 6, 3, 2), inv_variance=None)
    with raises(NotSupportedError, "norm_forward.phase", expected="TRAINING", got="INFERENCE"):
        forward(M.BATCH_NORM, dims, phase=NormFwdPhase.INFERENCE, mean=None, inv_variance=None)
    with raises(UnsupportedDataTypeError, "norm_forward.x.data_type", expected="a float type", got="INT8"):
        forward(M.LAYER_NORM, (1, 6, 3, 2), x=tensor(1, X, DataType.INT8))
    with raises(BadParamError, "norm_forward.input_running_var", expected="all", got="none"):
        forward(
            M.BATCH_NORM,
            dims,
            input_running_mean=tensor(9, dims),
            exp_avg_factor=replace(tensor(20, (1,)), constant_value=0.25),
        )
    with raises(NotSupportedError, "norm_backward.mean, inv_variance", expected="both", got="t5"):
        backward(M.LAYER_NORM, (1, 6, 3, 2), 0, mean=None)
    with raises(ShapeMismatchError, "norm_backward.dscale.dims", expected="[1, 6, 3, 2]", got="[1, 6, 1, 1]"):
        backward(M.LAYER_NORM, (1, 6, 3, 2), 0, dscale=tensor(7, dims))
