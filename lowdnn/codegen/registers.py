"""Values in registers: the C types that hold a data type's numbers, and conversions between them as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import copysign, inf, isnan

from lowdnn import dtypes
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.ops.pointwise import is_predicate
from lowdnn.plan import Scalar, ScalarType

#: The types of fields of ``Functor::Args``, by their C type.
SCALAR_TYPES = {"f32": ScalarType.F32, "f64": ScalarType.F64, "i32": ScalarType.I32, "i64": ScalarType.I64}

#: Halfway between the largest f32 and the next power of two: numbers from here on round to infinity in f32.
_F32_OVERFLOW = 3.4028235677973366e38


@dataclass(frozen=True)
class Value:
    """A tensor's value in registers: its name, its C type, and its name in the tensor's storage type."""

    name: str
    type: str
    stored: str


@cache
def register_type(data_type: DataType) -> str:
    """The C type of registers for values of ``data_type``: f32, f64, i32 or i64."""
    if data_type in (DataType.DOUBLE, DataType.INT64):
        return dtypes.info(data_type).c_type
    return "f32" if dtypes.info(data_type).kind is dtypes.Kind.FLOAT else "i32"


def reads_own_values(mode: PointwiseMode, compute_type: DataType) -> bool:
    """True where operands enter an operation as they are and not as numbers of the compute type."""
    return is_predicate(mode) and (mode >= PointwiseMode.LOGICAL_AND or compute_type is DataType.BOOLEAN)


def converted(text: str, source: str, target: str) -> str:
    """An expression of the C type ``source`` as one of ``target``."""
    return text if source == target else f"convert<{target}>({text})"


def as_number(value: Value, data_type: DataType, compute_type: DataType) -> str:
    """A value of ``data_type`` as a number of the compute type, in that type's register type."""
    storage, held = dtypes.info(compute_type).c_type, register_type(compute_type)
    if storage == held or data_type is compute_type:
        return converted(value.name, value.type, held)
    return f"rounded<{storage}, {held}>({value.name})"


def common_type(types: Iterable[str]) -> str:
    """The C type in which values of all ``types`` are compared."""
    distinct = set(types)
    if len(distinct) == 1:
        return distinct.pop()
    return "i64" if distinct <= {"i32", "i64"} else "f64"


def scalar(c_type: str, value: float) -> Scalar:
    """A parameter as a field of type i32, i64, f32 or f64; an infinite or too large one saturates in integers."""
    if c_type in ("f32", "f64"):
        overflows = c_type == "f32" and abs(value) >= _F32_OVERFLOW
        return Scalar(SCALAR_TYPES[c_type], copysign(inf, value) if overflows else float(value))
    limit = 2 ** (31 if c_type == "i32" else 63)
    bounded = 0 if isnan(value) else max(-limit, min(limit - 1, value))
    return Scalar(SCALAR_TYPES[c_type], int(bounded))
