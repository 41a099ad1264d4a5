from __future__ import annotations

from typing import Any

import numpy as np

from lowdnn.enums import DataType
from lowdnn.ops.gen_stats import GenStats, output_dims
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import ShapeMismatchError, UnsupportedDataTypeError
from tests.support.data import fresh_seed
from tests.support.errors import raises


def tensor(uid: int, dims: tuple[int, ...]) -> Tensor:
    return Tensor(uid, DataType.FLOAT, dims, packed_strides(dims), 16)


def gen_stats(dims: tuple[int, ...], **changes: Any) -> GenStats:
    ports: dict[str, Any] = {
        "x": tensor(1, dims),
        "sum": tensor(2, output_dims(dims)),
        "sum_of_squares": tensor(3, output_dims(dims)),
        "compute_type": DataType.FLOAT,
    }
    return GenStats(**(ports | changes))


def test_reference_is_the_formula() -> None:
    seed = fresh_seed()
    x = np.random.default_rng(seed).integers(-5, 6, (2, 3, 4, 5)).astype(float)
    results = gen_stats(x.shape).reference({"x": x})
    for channel in range(3):
        values = x[:, channel].ravel()
        assert results["sum"][0, channel, 0, 0] == sum(values), seed
        assert results["sum_of_squares"][0, channel, 0, 0] == sum(v * v for v in values), seed


def test_empty_batches_give_zeros() -> None:
    results = gen_stats((0, 3, 4)).reference({"x": np.zeros((0, 3, 4))})
    assert all(values.shape == (1, 3, 1) and not values.any() for values in results.values())


def test_checks() -> None:
    with raises(ShapeMismatchError, "gen_stats.sum_of_squares.dims", expected="[1, 3, 1]", got="[1, 3, 4]"):
        gen_stats((2, 3, 4), sum_of_squares=tensor(3, (1, 3, 4)))
    with raises(ShapeMismatchError, "gen_stats.x.dims", expected="rank >= 2", got="[4]"):
        gen_stats((4,))
    with raises(UnsupportedDataTypeError, "gen_stats.compute_type", expected="FLOAT or DOUBLE", got="HALF"):
        gen_stats((2, 3, 4), compute_type=DataType.HALF)


def test_flops() -> None:
    assert gen_stats((2, 3, 4)).flops == 3 * 24
