from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.oracle import evaluate
from lowdnn.enums import DataType
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError, ShapeMismatchError
from tests.support.data import fresh_seed
from tests.support.errors import raises

X = (3, 4, 5)


def tensor(uid: int, dims: tuple[int, ...] = X) -> Tensor:
    return Tensor(uid, DataType.DOUBLE, dims, packed_strides(dims), 16)


def softmax(
    x: NDArray[Any], axes: tuple[int, ...], sink: NDArray[Any] | None = None, **changes: Any
) -> dict[str, NDArray[Any]]:
    dims = tuple(1 if axis in axes else extent for axis, extent in enumerate(x.shape))
    ports = {"stats": tensor(3, dims), "max": tensor(4, dims), "sum_exp": tensor(5, dims)}
    inputs = {"x": x} if sink is None else {"x": x, "sink": sink}
    ports |= {port: tensor(6, values.shape) for port, values in inputs.items() if port == "sink"}
    return Softmax(tensor(1, x.shape), tensor(2, x.shape), **(ports | changes)).reference(inputs)


@pytest.mark.parametrize("axes", [(2,), (1,), (0, 2)])
def test_reference_is_the_formula(axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(fresh_seed()).normal(0, 3, X)
    results = softmax(x, axes)
    total = np.exp(x).sum(axes, keepdims=True)
    np.testing.assert_allclose(results["y"], np.exp(x) / total, rtol=1e-12)
    np.testing.assert_allclose(results["stats"], np.log(total), rtol=1e-12)
    np.testing.assert_array_equal(results["max"], x.max(axes, keepdims=True))
    np.testing.assert_allclose(results["sum_exp"] * np.exp(results["max"]), total, rtol=1e-12)
    np.testing.assert_allclose(softmax(x, axes, is_log=True)["y"], np.log(results["y"]), rtol=1e-9)
    np.testing.assert_allclose(softmax(x, axes, stats_log2=True)["stats"], np.log2(total), rtol=1e-12)


@pytest.mark.parametrize("is_log", [False, True])
def test_masked_rows(is_log: bool) -> None:
    x = np.random.default_rng(fresh_seed()).normal(0, 3, X)
    x[1] = -np.inf
    zero, nan = (softmax(x, (2,), is_log=is_log, masked_is_nan=flag) for flag in (False, True))
    np.testing.assert_array_equal(zero["y"][1], -np.inf if is_log else 0)
    assert np.isnan(nan["y"][1]).all()
    for port in ("stats", "max", "sum_exp"):
        np.testing.assert_array_equal(nan[port], zero[port])
    np.testing.assert_array_equal(nan["y"][::2], zero["y"][::2])


def test_a_sink_is_one_more_element_that_y_lacks() -> None:
    rng = np.random.default_rng(fresh_seed())
    x, sink = rng.normal(0, 3, X), rng.normal(0, 3, (1, 4, 1))
    longer = np.concatenate([x, np.broadcast_to(sink, (3, 4, 1))], axis=2)
    for is_log in (False, True):
        with_sink = softmax(x, (2,), sink, is_log=is_log)
        wanted = softmax(longer, (2,), is_log=is_log)
        np.testing.assert_allclose(with_sink.pop("y"), wanted.pop("y")[..., :-1], rtol=1e-12)
        for port, values in with_sink.items():
            np.testing.assert_allclose(values, wanted[port], rtol=1e-12)
    masked, nothing = np.full(X, -np.inf), np.full((1, 1, 1), -np.inf)
    assert not softmax(masked, (2,), sink)["y"].any()
    np.testing.assert_array_equal(softmax(x, (2,), nothing)["y"], softmax(x, (2,))["y"])
    np.testing.assert_array_equal(softmax(masked, (2,), nothing)["sum_exp"], np.zeros((3, 4, 1)))


def test_large_numbers_do_not_overflow() -> None:
    results = softmax(np.array([[1e4, 1e4 - 1, -np.inf]]), (1,))
    np.testing.assert_allclose(results["y"], [[1 / (1 + np.exp(-1)), np.exp(-1) / (1 + np.exp(-1)), 0]], rtol=1e-12)


def test_rows_of_nothing_but_minus_infinity() -> None:
    x = np.array([[-np.inf, -np.inf], [-np.inf, 3], [np.nan, -np.inf], [np.inf, 0]])
    results = softmax(x, (1,))
    nothing, nan = [-np.inf], [np.nan]
    np.testing.assert_array_equal(results["y"], [[0, 0], [0, 1], 2 * nan, 2 * nan])
    np.testing.assert_array_equal(results["max"], [nothing, [3], nan, [np.inf]])
    np.testing.assert_array_equal(results["sum_exp"], [[0], [1], nan, nan])
    for stats_log2 in (False, True):
        np.testing.assert_array_equal(softmax(x[:1], (1,), stats_log2=stats_log2)["stats"], [nothing])
    np.testing.assert_array_equal(softmax(x, (1,), is_log=True)["y"], [2 * nothing, [-np.inf, 0], 2 * nan, 2 * nan])
    assert softmax(x[:1, :1], (1,))["y"] == 0


@pytest.mark.parametrize("is_log", [False, True])
def test_gradient_agrees_with_differences(is_log: bool) -> None:
    rng = np.random.default_rng(fresh_seed())
    x, dy, direction = (rng.normal(0, 1, X) for _ in range(3))
    y, *ends = (softmax(x + step * direction, (1,), is_log=is_log)["y"] for step in (0, 1e-5, -1e-5))
    builder = CaseBuilder()
    ports = [builder.tensor(X, DataType.DOUBLE) for _ in range(2)]
    builder.softmax_backward(*ports, (1,), is_log=is_log, store=DataType.DOUBLE)
    (dx,) = evaluate(builder.graph(), {1: dy, 2: y}).values()
    slope = float(((ends[0] - ends[1]) * dy).sum()) / 2e-5
    assert slope == pytest.approx(float((dx * direction).sum()), rel=1e-6, abs=1e-8)


def test_axes_come_from_the_statistics_or_are_the_last() -> None:
    assert Softmax(tensor(1), tensor(2)).normalised_axes == (2,)
    assert Softmax(tensor(1), tensor(2), max=tensor(4, (3, 1, 1))).normalised_axes == (1, 2)
    assert Softmax(tensor(1), tensor(2), axes=(0,)).stats_dims == (1, 4, 5)


def test_checks() -> None:
    with raises(ShapeMismatchError, "softmax.max.dims", expected="[3, 1, 5]", got="[3, 4, 1]"):
        Softmax(tensor(1), tensor(2), stats=tensor(3, (3, 1, 5)), max=tensor(4, (3, 4, 1)))
    with raises(ShapeMismatchError, "softmax.sink.dims", expected="[3, 4, 1], or 1", got="[1, 1, 5]"):
        Softmax(tensor(1), tensor(2), sink=tensor(6, (1, 1, 5)))
    with raises(BadParamError, "softmax.axes", expected="under the rank 3", got="[3]"):
        Softmax(tensor(1), tensor(2), axes=(3,))
