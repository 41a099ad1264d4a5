from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.enums import DataType, RngDistribution
from lowdnn.ops import philox
from lowdnn.ops.rng import Rng, RngOperation
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError, UnsupportedDataTypeError
from tests.support.errors import raises

BERNOULLI, UNIFORM, NORMAL = RngDistribution
COUNT = 1 << 16


def tensor(uid: int, dims: tuple[int, ...], data_type: DataType = DataType.FLOAT) -> Tensor:
    return Tensor(uid, data_type, dims, packed_strides(dims), 16)


def drawn(rng: Rng, count: int = COUNT, data_type: DataType = DataType.FLOAT, seed: int = 1) -> NDArray[Any]:
    return RngOperation(rng, tensor(1, (count,), data_type), seed).reference({})["y"]


def test_the_formulas() -> None:
    words = [int(word) for word in philox.words(9, 0, np.arange(8, dtype=np.uint64))]
    exact = [(word | 1) / 2**32 for word in words]
    assert drawn(Rng(BERNOULLI, probability=0.25), 8, seed=9).tolist() == [word < 2**30 for word in words]
    assert drawn(Rng(UNIFORM), 8, DataType.DOUBLE, seed=9).tolist() == exact
    short = drawn(Rng(UNIFORM, minimum=-1.0, maximum=3.0), 8, seed=9)
    np.testing.assert_allclose(short, [4 * u - 1 for u in exact], atol=2.0**-21, rtol=0)
    turn = (math.cos, math.sin)
    normal = [
        5 + 2 * math.sqrt(-2 * math.log(exact[i & ~1])) * turn[i % 2](2 * math.pi * exact[i | 1]) for i in range(8)
    ]
    got = drawn(Rng(NORMAL, mean=5.0, standard_deviation=2.0), 8, DataType.DOUBLE, seed=9)
    np.testing.assert_allclose(got, normal, rtol=1e-14)


def test_float_uniforms_are_floats_within_the_open_interval() -> None:
    operation = RngOperation(Rng(UNIFORM), tensor(1, (4,)))
    extremes = operation._uniform(np.array([0, 1, 2**31, 2**32 - 1], np.uint64))
    assert extremes.tolist() == [2.0**-32, 2.0**-32, 0.5, 1 - 2.0**-24]
    values = drawn(Rng(UNIFORM))
    assert (values.astype(np.float32) == values).all()


@pytest.mark.parametrize("data_type", [DataType.FLOAT, DataType.DOUBLE])
def test_uniform_statistics(data_type: DataType) -> None:
    """Within 4.5 standard deviations of what independent numbers give; chi-square over 256 cells."""
    values = drawn(Rng(UNIFORM), data_type=data_type)
    assert abs(values.mean() - 0.5) < 4.5 / math.sqrt(12 * COUNT)
    assert abs(values.var() - 1 / 12) < 4.5 / math.sqrt(180 * COUNT)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4.5 / math.sqrt(COUNT)
    assert chi_square(np.histogram(values, 256, (0, 1))[0], np.full(256, COUNT / 256)) < 255 + 4.5 * math.sqrt(510)


def test_normal_statistics() -> None:
    """Moments up to the fourth, and chi-square over 64 cells of equal probability."""
    values = drawn(Rng(NORMAL, mean=0.0, standard_deviation=1.0))
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((values**power).mean() - moment) < 4.5 * math.sqrt(variance / COUNT), power
    assert abs(np.corrcoef(values[::2], values[1::2])[0, 1]) < 4.5 / math.sqrt(COUNT / 2)
    cells = np.floor(64 * (0.5 + 0.5 * np.vectorize(math.erf)(values / math.sqrt(2)))).astype(int)
    assert chi_square(np.bincount(cells, minlength=64), np.full(64, COUNT / 64)) < 63 + 4.5 * math.sqrt(126)


@pytest.mark.parametrize("probability", [0.001, 0.3, 0.9])
def test_bernoulli_statistics(probability: float) -> None:
    ones = drawn(Rng(BERNOULLI, probability=probability))
    assert abs(ones.mean() - probability) < 4.5 * math.sqrt(probability * (1 - probability) / COUNT)


def test_seeds_and_offsets_give_other_streams() -> None:
    uniform, y = Rng(UNIFORM), tensor(1, (COUNT,), DataType.DOUBLE)
    offset = tensor(2, (1,), DataType.INT64)
    streams = [
        RngOperation(uniform, y, seed, offset).reference({"offset": np.array([stream])})["y"]
        for seed, stream in ((1, 0), (1, 1), (2, 0), (2**32, 0), (1, 2**32))
    ]
    for n, one in enumerate(streams):
        for other in streams[:n]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 4.5 / math.sqrt(COUNT)


def test_certain_numbers() -> None:
    assert not drawn(Rng(BERNOULLI, probability=0.0)).any()
    assert drawn(Rng(BERNOULLI, probability=1.0)).all()
    assert (drawn(Rng(UNIFORM, minimum=2.0, maximum=2.0), 9) == 2).all()
    assert (drawn(Rng(NORMAL, mean=3.0, standard_deviation=0.0), 9) == 3).all()


def test_checks() -> None:
    with raises(BadParamError, "rng.probability", expected="0 to 1", got="-1.0"):
        Rng()
    with raises(BadParamError, "rng.maximum", expected="a finite number >= the minimum 2.0", got="1.0"):
        Rng(UNIFORM, minimum=2.0)
    with raises(BadParamError, "rng.standard_deviation", expected="a finite number >= 0", got="-1.0 with mean 0.0"):
        Rng(NORMAL, mean=0.0)
    with raises(UnsupportedDataTypeError, "rng.y.data_type", expected="a float type for UNIFORM", got="INT32"):
        RngOperation(Rng(UNIFORM), tensor(1, (4,), DataType.INT32))
    with raises(BadParamError, "rng.seed.dims", expected="one element", got="[2]"):
        RngOperation(Rng(UNIFORM), tensor(1, (4,)), tensor(2, (2,), DataType.INT64))
    with raises(UnsupportedDataTypeError, "rng.offset.data_type", expected="INT32 or INT64", got="FLOAT"):
        RngOperation(Rng(UNIFORM), tensor(1, (4,)), 0, tensor(2, (1,)))
    with raises(BadParamError, "rng.seed", expected="a signed integer of 64 bits", got=str(2**63)):
        RngOperation(Rng(UNIFORM), tensor(1, (4,)), 2**63)


def chi_square(counts: NDArray[Any], expected: NDArray[Any]) -> float:
    return float((np.square(counts - expected) / expected).sum())
