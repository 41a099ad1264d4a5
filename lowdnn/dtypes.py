"""The one table of data types: size, host storage, C type; and conversion between host storage and float64.

Host storage is a NumPy array of ``DTypeInfo.storage``. bfloat16 and the fp8 types have no NumPy type of their own: they
are stored as unsigned bit patterns and converted here, so that nothing but NumPy is needed (``ml_dtypes`` arrays have
the same bits).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DataType
from lowdnn.status import UnsupportedDataTypeError


class Kind(Enum):
    FLOAT = "float"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    BOOLEAN = "boolean"


@dataclass(frozen=True)
class DTypeInfo:
    """Facts of one data type.

    storage: NumPy dtype of the host array.  c_type: the type's name in ``engines/include/numeric.cuh``.
    mantissa_bits: explicit fraction bits of a float (0 for integers).  epsilon: spacing of the values just above 1.
    short_name: used in kernel names, case text and reports.
    """

    data_type: DataType
    size_bytes: int
    kind: Kind
    storage: np.dtype[Any]
    c_type: str
    short_name: str
    exponent_bits: int = 0
    mantissa_bits: int = 0

    @property
    def epsilon(self) -> float:
        return 2.0**-self.mantissa_bits if self.kind is Kind.FLOAT else 0.0

    @property
    def is_bit_pattern(self) -> bool:
        """True where the storage holds bits that NumPy cannot compute with."""
        return self.kind is Kind.FLOAT and self.storage.kind == "u"


_TABLE: Mapping[DataType, DTypeInfo] = {
    info.data_type: info
    for info in (
        DTypeInfo(DataType.DOUBLE, 8, Kind.FLOAT, np.dtype(np.float64), "f64", "fp64", 11, 52),
        DTypeInfo(DataType.FLOAT, 4, Kind.FLOAT, np.dtype(np.float32), "f32", "fp32", 8, 23),
        DTypeInfo(DataType.HALF, 2, Kind.FLOAT, np.dtype(np.float16), "f16", "fp16", 5, 10),
        DTypeInfo(DataType.BFLOAT16, 2, Kind.FLOAT, np.dtype(np.uint16), "bf16", "bf16", 8, 7),
        DTypeInfo(DataType.FP8_E4M3, 1, Kind.FLOAT, np.dtype(np.uint8), "e4m3", "e4m3", 4, 3),
        DTypeInfo(DataType.FP8_E5M2, 1, Kind.FLOAT, np.dtype(np.uint8), "e5m2", "e5m2", 5, 2),
        DTypeInfo(DataType.FP8_E8M0, 1, Kind.FLOAT, np.dtype(np.uint8), "e8m0", "e8m0", 8, 0),
        DTypeInfo(DataType.INT8, 1, Kind.SIGNED, np.dtype(np.int8), "i8", "int8"),
        DTypeInfo(DataType.INT32, 4, Kind.SIGNED, np.dtype(np.int32), "i32", "int32"),
        DTypeInfo(DataType.INT64, 8, Kind.SIGNED, np.dtype(np.int64), "i64", "int64"),
        DTypeInfo(DataType.UINT8, 1, Kind.UNSIGNED, np.dtype(np.uint8), "u8", "uint8"),
        DTypeInfo(DataType.BOOLEAN, 1, Kind.BOOLEAN, np.dtype(np.bool_), "b8", "bool"),
    )
}


_SCALE_BIAS = 127
_SCALE_NAN = 255


#: Types of one byte with a sign, an exponent and a fraction.
FP8_TYPES = (DataType.FP8_E4M3, DataType.FP8_E5M2)


def info(data_type: DataType) -> DTypeInfo:
    """The facts of ``data_type``; raises UnsupportedDataTypeError for one that no operation takes."""
    found = _TABLE.get(data_type)
    if found is None:
        names = ", ".join(t.name for t in _TABLE)
        raise UnsupportedDataTypeError.at("data_type", expected=f"one of {names}", got=data_type.name)
    return found


def supported() -> tuple[DataType, ...]:
    return tuple(_TABLE)


def by_short_name(name: str) -> DataType:
    """The data type of a short name such as ``bf16``; raises UnsupportedDataTypeError."""
    for data_type, facts in _TABLE.items():
        if facts.short_name == name:
            return data_type
    names = ", ".join(facts.short_name for facts in _TABLE.values())
    raise UnsupportedDataTypeError.at("data_type", expected=f"one of {names}", got=repr(name))


def to_float64(stored: NDArray[Any], data_type: DataType) -> NDArray[np.float64]:
    """The numbers that ``stored`` (an array of the type's storage) stands for."""
    facts = info(data_type)
    with np.errstate(invalid="ignore"):  # a signalling NaN is data here, not an event
        if not facts.is_bit_pattern:
            return stored.astype(np.float64)
        if data_type is DataType.BFLOAT16:
            return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    values: NDArray[np.float64] = _small_float_values(facts)[stored]
    return values


def to_values(stored: NDArray[Any], data_type: DataType) -> NDArray[Any]:
    """The numbers of ``stored`` without loss: float64 for float types, int64 for integers, bool for booleans."""
    kind = info(data_type).kind
    if kind is Kind.FLOAT:
        return to_float64(stored, data_type)
    return stored.astype(np.bool_ if kind is Kind.BOOLEAN else np.int64)


def rounded(values: NDArray[Any], data_type: DataType) -> NDArray[Any]:
    """``values`` after a trip through ``data_type``: the nearest numbers that the type has."""
    return to_values(from_float64(values, data_type), data_type)


def wrapped(values: NDArray[Any], data_type: DataType) -> NDArray[np.int64]:
    """Integer ``values`` modulo the width of the signed integer type ``data_type``, as its arithmetic gives them."""
    return values.astype(np.int64).astype(info(data_type).storage).astype(np.int64)


def from_float64(values: NDArray[Any], data_type: DataType) -> NDArray[Any]:
    """Rounds to nearest even into the type's storage; e8m0, the type of scales, rounds up.

    Integers saturate (NaN gives 0), fp16 and bf16 overflow to infinity, fp8 saturates to the largest finite value and
    keeps NaN, booleans are ``value != 0``: the rules of the kernels' conversions. e8m0 has 2^-127 to 2^127 and NaN:
    what is greater becomes its largest value, zero and negative numbers its smallest.
    Raises UnsupportedDataTypeError for values that are no real numbers.
    """
    facts = info(data_type)
    values = np.asarray(values)
    if values.dtype.kind not in "iubf":
        raise UnsupportedDataTypeError.at("array.dtype", expected="real numbers", got=values.dtype)
    if facts.kind is Kind.BOOLEAN:
        return np.asarray(values != 0)
    if facts.kind is not Kind.FLOAT:
        return _to_integer(values, facts)
    if not facts.is_bit_pattern:
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(facts.storage)
    if data_type is DataType.FP8_E8M0:
        return _to_scale(values.astype(np.float64))
    return _to_bits(values.astype(np.float64), facts)


def holds(data_type: DataType, other: DataType) -> bool:
    """Whether each value of ``other`` is one of ``data_type``."""
    facts, given = info(data_type), info(other)
    if data_type is other:
        return True
    if facts.kind is Kind.FLOAT and given.kind is Kind.FLOAT:
        return given.mantissa_bits <= facts.mantissa_bits and given.exponent_bits <= facts.exponent_bits
    is_integer = given.kind in (Kind.SIGNED, Kind.UNSIGNED)
    return is_integer and facts.kind is Kind.SIGNED and given.size_bytes < facts.size_bytes


def _to_integer(values: NDArray[Any], facts: DTypeInfo) -> NDArray[Any]:
    if values.dtype.kind in "iub":
        limits = np.iinfo(facts.storage)
        return np.asarray(np.clip(values, limits.min, limits.max), facts.storage)
    limits = np.iinfo(facts.storage)
    rounded = np.rint(np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    inside = (rounded > float(limits.min)) & (rounded < float(limits.max))
    result = np.where(inside, rounded, 0.0).astype(facts.storage)
    result = np.where(rounded >= float(limits.max), np.asarray(limits.max, facts.storage), result)
    return np.asarray(np.where(rounded <= float(limits.min), limits.min, result), facts.storage)


def _to_bits(values: NDArray[np.float64], facts: DTypeInfo) -> NDArray[Any]:
    """Bits of the nearest representable value, ties to even, by scaling to an integer significand."""
    bias = 2 ** (facts.exponent_bits - 1) - 1
    is_e4m3 = facts.data_type is DataType.FP8_E4M3
    magnitude = np.abs(values)
    finite = np.isfinite(magnitude)
    _, exponent = np.frexp(np.where(finite, magnitude, 0.0))
    exponent = np.where(magnitude > 0, np.maximum(exponent - 1, 1 - bias), 1 - bias)
    significand = np.rint(np.ldexp(np.where(finite, magnitude, 0.0), facts.mantissa_bits - exponent)).astype(np.int64)
    # An even carry into the next exponent is right by itself: the fields are adjacent.
    bits = ((exponent + bias - 1).astype(np.int64) << facts.mantissa_bits) + significand
    top = (2**facts.exponent_bits - 1) << facts.mantissa_bits
    largest = top + 6 if is_e4m3 else top - 1
    infinity = top if facts.size_bytes == 2 else largest
    bits = np.where((bits > largest) | np.isinf(values), infinity, bits)
    nan = top + 7 if is_e4m3 else top + (1 << (facts.mantissa_bits - 1))
    bits = np.where(np.isnan(values), nan, bits)
    sign = np.signbit(values).astype(np.int64) << (8 * facts.size_bytes - 1)
    return np.asarray(bits | sign, facts.storage)


def _to_scale(values: NDArray[np.float64]) -> NDArray[Any]:
    """Bits of the least power of two that is not below each value."""
    positive = np.where(values > 0, values, 2.0**-127)  # NaN compares false
    fraction, exponent = np.frexp(np.minimum(positive, 2.0**127))
    bits = np.maximum(np.where(fraction > 0.5, exponent, exponent - 1) + _SCALE_BIAS, 0)
    return np.where(np.isnan(values), _SCALE_NAN, np.minimum(bits, _SCALE_NAN - 1)).astype(np.uint8)


def _small_float_values(facts: DTypeInfo) -> NDArray[np.float64]:
    """The value of each of the 256 bit patterns of an fp8 type."""
    bias = 2 ** (facts.exponent_bits - 1) - 1
    pattern = np.arange(256)
    if facts.data_type is DataType.FP8_E8M0:
        return np.where(pattern == _SCALE_NAN, np.nan, np.ldexp(1.0, pattern - _SCALE_BIAS))
    exponent = (pattern & 0x7F) >> facts.mantissa_bits
    fraction = pattern & (2**facts.mantissa_bits - 1)
    normal = np.ldexp(1.0 + fraction / 2**facts.mantissa_bits, exponent - bias)
    values = np.where(exponent == 0, np.ldexp(fraction / 2**facts.mantissa_bits, 1 - bias), normal)
    top = exponent == 2**facts.exponent_bits - 1
    if facts.data_type is DataType.FP8_E4M3:
        values = np.where(top & (fraction == 7), np.nan, values)
    else:
        values = np.where(top, np.where(fraction == 0, np.inf, np.nan), values)
    return np.asarray(np.where(pattern & 0x80, -values, values))
