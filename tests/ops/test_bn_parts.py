"""BN finalise and BN backward weights: together with channel statistics they are batch normalisation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.enums import BnFinalizeStatsMode, DataType, NormFwdPhase, NormMode
from lowdnn.ops.bn_backward_weights import BnBackwardWeights
from lowdnn.ops.bn_finalize import BnFinalize
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError, NotSupportedError, ShapeMismatchError
from tests.support.data import fresh_seed
from tests.support.errors import raises

X, CHANNELS = (3, 4, 2, 5), (1, 4, 1, 1)
COUNT, EPSILON, FACTOR = 30, 0.01, 0.2
RUNNING = ("input_running_mean", "input_running_var", "output_running_mean", "output_running_var")


def tensor(uid: int, dims: tuple[int, ...] = CHANNELS, data_type: DataType = DataType.FLOAT) -> Tensor:
    return Tensor(uid, data_type, dims, packed_strides(dims), 16, name=f"t{uid}")


def constant(uid: int, value: float) -> Tensor:
    return replace(tensor(uid, (1,)), constant_value=value)


def finalize(**changes: Any) -> BnFinalize:
    names = ("sum", "sum_of_squares", "scale", "bias", "mean", "inv_std", "eq_scale", "eq_bias", *RUNNING)
    ports = {name: tensor(uid) for uid, name in enumerate(names, 1)}
    ports |= {"accum_count": constant(20, COUNT), "epsilon": constant(21, EPSILON)}
    ports["exp_avg_factor"] = constant(22, FACTOR)
    return BnFinalize(BnFinalizeStatsMode.TRAINING, DataType.FLOAT, **(ports | changes))


def weights(**changes: Any) -> BnBackwardWeights:
    names = ("mean", "inv_std", "scale", "dscale", "dbias", "eq_dy_scale", "eq_x_scale", "eq_bias")
    ports = {name: tensor(uid) for uid, name in enumerate(names, 1)}
    return BnBackwardWeights(DataType.FLOAT, x=tensor(20, X), dy=tensor(21, X), **(ports | changes))


def data() -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(fresh_seed())
    of_channels = ("scale", "bias", "input_running_mean", "input_running_var")
    drawn = {name: rng.normal(1, 1, CHANNELS) for name in of_channels}
    scalars = {"accum_count": COUNT, "epsilon": EPSILON, "exp_avg_factor": FACTOR}
    drawn |= {name: np.array([value]) for name, value in scalars.items()}
    return drawn | {"x": rng.normal(2, 3, X), "dy": rng.normal(0, 1, X)}


def test_finalised_statistics_are_those_of_batch_norm() -> None:
    inputs = data()
    x = inputs["x"]
    sums = {"sum": x.sum((0, 2, 3), keepdims=True), "sum_of_squares": (x**2).sum((0, 2, 3), keepdims=True)}
    found = finalize().reference(inputs | sums)
    names = ("mean", "inv_variance", *RUNNING)
    ports = {name: tensor(uid) for uid, name in enumerate(names, 10)}
    norm = NormForward(
        NormMode.BATCH_NORM,
        NormFwdPhase.TRAINING,
        tensor(1, X),
        constant(2, EPSILON),
        tensor(3, X),
        tensor(4),
        tensor(5),
        exp_avg_factor=constant(6, FACTOR),
        **ports,
    )
    expected = norm.reference(inputs)
    for port, as_norm in (("mean", "mean"), ("inv_std", "inv_variance"), *zip(RUNNING[2:], RUNNING[2:], strict=True)):
        np.testing.assert_allclose(found[port], expected[as_norm], rtol=1e-10)
    np.testing.assert_allclose(x * found["eq_scale"] + found["eq_bias"], expected["y"], rtol=1e-10, atol=1e-12)


def test_coefficients_make_the_gradient_of_batch_norm() -> None:
    inputs = data()
    x, dy = inputs["x"], inputs["dy"]
    mean = x.mean((0, 2, 3), keepdims=True)
    inv_std = 1 / np.sqrt(x.var((0, 2, 3), keepdims=True) + EPSILON)
    found = weights().reference(inputs | {"mean": mean, "inv_std": inv_std})
    ports = {name: tensor(uid) for uid, name in enumerate(("mean", "inv_variance", "scale", "dscale", "dbias"), 4)}
    norm = NormBackward(NormMode.BATCH_NORM, tensor(1, X), tensor(2, X), tensor(3, X), **ports)
    expected = norm.reference(inputs | {"mean": mean, "inv_variance": inv_std})
    for port in ("dscale", "dbias"):
        np.testing.assert_allclose(found[port], expected[port], rtol=1e-10)
    dx = found["eq_dy_scale"] * dy + found["eq_x_scale"] * x + found["eq_bias"]
    np.testing.assert_allclose(dx, expected["dx"], rtol=1e-9, atol=1e-12)


def test_checks() -> None:
    with raises(NotSupportedError, "bn_finalize.mode", expected="TRAINING", got="INFERENCE"):
        replace(finalize(), mode=BnFinalizeStatsMode.INFERENCE)
    with raises(BadParamError, "bn_finalize.running statistics", expected="all of them", got="some"):
        finalize(input_running_var=None)
    with raises(ShapeMismatchError, "bn_finalize.eq_bias.dims", expected="[1, 4, 1, 1]", got="[4]"):
        finalize(eq_bias=tensor(8, (4,)))
    with raises(ShapeMismatchError, "bn_backward_weights.dscale.dims", expected="[1, 4, 1, 1]", got="[1, 3, 1, 1]"):
        weights(dscale=tensor(4, (1, 3, 1, 1)))
    with pytest.raises(BadParamError, match=r"bn_finalize\.epsilon: expected a by-value or constant tensor"):
        finalize(epsilon=tensor(21))
