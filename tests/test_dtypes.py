from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import DataType
from lowdnn.status import UnsupportedDataTypeError
from tests.support.data import fresh_seed
from tests.support.errors import raises

BIT_PATTERNS = {
    DataType.BFLOAT16: ml_dtypes.bfloat16,
    DataType.FP8_E4M3: ml_dtypes.float8_e4m3fn,
    DataType.FP8_E5M2: ml_dtypes.float8_e5m2,
}
READABLE = BIT_PATTERNS | {DataType.FP8_E8M0: ml_dtypes.float8_e8m0fnu}


def all_bits(data_type: DataType) -> NDArray[Any]:
    size = dtypes.info(data_type).size_bytes
    return np.arange(2 ** (8 * size)).astype(f"u{size}").view(dtypes.info(data_type).storage)


@pytest.mark.parametrize("data_type", READABLE)
def test_every_bit_pattern_is_read_as_ml_dtypes_reads_it(data_type: DataType) -> None:
    bits = all_bits(data_type)
    with np.errstate(invalid="ignore"):
        expected = bits.view(READABLE[data_type]).astype(np.float64)
    np.testing.assert_array_equal(dtypes.to_float64(bits, data_type), expected)
    np.testing.assert_array_equal(np.signbit(dtypes.to_float64(bits, data_type)), np.signbit(expected))


@pytest.mark.parametrize("data_type", [*READABLE, DataType.HALF])
def test_every_number_survives_a_round_trip(data_type: DataType) -> None:
    stored = all_bits(data_type)
    values = dtypes.to_float64(stored, data_type)
    finite = np.isfinite(values)
    back = dtypes.from_float64(values[finite], data_type)
    np.testing.assert_array_equal(back.view(f"u{back.itemsize}"), stored[finite].view(f"u{back.itemsize}"))


def test_scales_are_rounded_up() -> None:
    values = [1.0, 1.0000001, 0.75, 3.0, 4.0, 2.0**-127, 2.0**-126.5, 2.0**127, 1e39, np.inf, 0.0, -1.0, -np.inf, 1e-45]
    expected = [1.0, 2.0, 1.0, 4.0, 4.0, 2.0**-127, 2.0**-126, *[2.0**127] * 3, *[2.0**-127] * 4]
    assert dtypes.rounded(np.array(values), DataType.FP8_E8M0).tolist() == expected
    assert np.isnan(dtypes.rounded(np.array([np.nan]), DataType.FP8_E8M0)).all()
    assert dtypes.from_float64(np.array([1.0, np.nan]), DataType.FP8_E8M0).tolist() == [127, 255]


@pytest.mark.parametrize("data_type", BIT_PATTERNS)
def test_rounding_is_that_of_ml_dtypes(data_type: DataType) -> None:
    seed = fresh_seed()
    bits = np.random.default_rng(seed).integers(0, 2**32, 100_000, np.uint32)
    numbers = bits.view(np.float32)
    numbers = numbers[np.isfinite(numbers)]
    near_one = np.copysign(2.0 ** np.random.default_rng(seed + 1).uniform(-18, 18, numbers.size), numbers)
    numbers = np.concatenate([numbers, near_one.astype(np.float32)])
    with np.errstate(all="ignore"):
        expected = numbers.astype(BIT_PATTERNS[data_type])
    inside = np.isfinite(expected.astype(np.float64))
    got = dtypes.from_float64(numbers[inside], data_type)
    np.testing.assert_array_equal(got, expected[inside].view(got.dtype), err_msg=f"seed {seed}")


@pytest.mark.parametrize("data_type", BIT_PATTERNS)
def test_ties_go_to_even(data_type: DataType) -> None:
    epsilon = dtypes.info(data_type).epsilon
    values = np.array([1 + epsilon / 2, 1 + 3 * epsilon / 2, 1 + epsilon / 2 + 2.0**-40])
    np.testing.assert_array_equal(dtypes.rounded(values, data_type), [1, 1 + 2 * epsilon, 1 + epsilon])


@pytest.mark.parametrize(
    ("data_type", "largest"),
    [
        (DataType.HALF, np.inf),
        (DataType.BFLOAT16, np.inf),
        (DataType.FP8_E4M3, 448.0),
        (DataType.FP8_E5M2, 57344.0),
        (DataType.INT8, 127),
        (DataType.INT32, 2**31 - 1),
        (DataType.INT64, 2**63 - 1),
        (DataType.UINT8, 255),
    ],
)
def test_overflow(data_type: DataType, largest: float) -> None:
    rounded = dtypes.rounded(np.array([1e39, np.inf, -1e39, -np.inf]), data_type)
    is_float = dtypes.info(data_type).kind is dtypes.Kind.FLOAT
    smallest = -largest if is_float else np.iinfo(dtypes.info(data_type).storage).min
    assert list(rounded) == [largest, largest, smallest, smallest]


def test_nan() -> None:
    for data_type in dtypes.supported():
        value = dtypes.rounded(np.array([np.nan]), data_type)[0]
        match dtypes.info(data_type).kind:
            case dtypes.Kind.FLOAT:
                assert np.isnan(value)
            case dtypes.Kind.BOOLEAN:
                assert value
            case _:
                assert value == 0


def test_integers_round_to_nearest_even() -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 126.6])
    np.testing.assert_array_equal(dtypes.from_float64(values, DataType.INT8), [0, 2, 2, 0, -2, 127])


def test_wide_integers_lose_nothing() -> None:
    big = np.array([2**63 - 1, -(2**63), 2**53 + 1])
    np.testing.assert_array_equal(dtypes.to_values(dtypes.from_float64(big, DataType.INT64), DataType.INT64), big)


def test_wrapping() -> None:
    values = np.array([2**31, -(2**31) - 1, 5])
    np.testing.assert_array_equal(dtypes.wrapped(values, DataType.INT32), [-(2**31), 2**31 - 1, 5])


def test_short_names_are_unique_and_found() -> None:
    for data_type in dtypes.supported():
        facts = dtypes.info(data_type)
        assert dtypes.by_short_name(facts.short_name) is data_type
        assert facts.storage.itemsize == facts.size_bytes


def test_unknown_types_are_refused() -> None:
    with raises(UnsupportedDataTypeError, "data_type", expected="BFLOAT16", got="INT4"):
        dtypes.info(DataType.INT4)
    with raises(UnsupportedDataTypeError, "data_type", expected="bf16", got="'float'"):
        dtypes.by_short_name("float")


@pytest.mark.parametrize("values", [np.zeros(2, np.complex64), np.array(["a"]), np.array([None])])
def test_what_is_no_real_number_is_refused(values: NDArray[Any]) -> None:
    with pytest.raises(UnsupportedDataTypeError, match="expected real numbers"):
        dtypes.from_float64(values, DataType.FLOAT)
