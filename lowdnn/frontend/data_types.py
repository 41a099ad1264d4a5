"""The frontend's data types: cudnn-frontend's numbers, which differ from the backend's because NOT_SET takes 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowdnn import dtypes
from lowdnn.checks import shown
from lowdnn.enums import DataType
from lowdnn.frontend.arguments import NumberedEnum
from lowdnn.status import UnsupportedDataTypeError


class data_type(NumberedEnum):
    """cudnn.data_type."""

    NOT_SET = 0
    FLOAT = 1
    DOUBLE = 2
    HALF = 3
    INT8 = 4
    INT32 = 5
    INT8x4 = 6
    UINT8 = 7
    UINT8x4 = 8
    INT8x32 = 9
    BFLOAT16 = 10
    INT64 = 11
    BOOLEAN = 12
    FP8_E4M3 = 14
    FP8_E5M2 = 15
    FAST_FLOAT_FOR_FP8 = 16
    FP8_E8M0 = 17
    FP8_E5M3 = 18
    FP4_E2M1 = 19
    INT4 = 20


#: Values of arguments that name a data type: a member of either enum, a torch or NumPy dtype, or its name.
DataTypeLike = data_type | DataType | Any

#: Names that NumPy, ml_dtypes and torch give to the types.
_BY_NAME = {
    "float64": data_type.DOUBLE,
    "float32": data_type.FLOAT,
    "float16": data_type.HALF,
    "bfloat16": data_type.BFLOAT16,
    "float8_e4m3fn": data_type.FP8_E4M3,
    "float8_e5m2": data_type.FP8_E5M2,
    "float8_e8m0fnu": data_type.FP8_E8M0,
    "int8": data_type.INT8,
    "int32": data_type.INT32,
    "int64": data_type.INT64,
    "uint8": data_type.UINT8,
    "bool": data_type.BOOLEAN,
}
#: The backend's types that operations take.
_BACKEND = {data_type[known.name]: known for known in dtypes.supported()}


def as_data_type(value: DataTypeLike, where: str) -> data_type:
    """The frontend's member for ``value``, NOT_SET for None; raises UnsupportedDataTypeError for what is no data type.

    A plain integer is not one, since the two enums number the types differently.
    """
    if value is None:
        return data_type.NOT_SET
    if isinstance(value, data_type):
        return value
    if isinstance(value, DataType):
        return _member(value.name, where)
    name = value if isinstance(value, str) else str(value).removeprefix("torch.")
    found = _BY_NAME.get(name) or _BY_NAME.get(_numpy_name(value))
    if found is None:
        expected = f"a data_type, or a torch or NumPy dtype of {', '.join(_BY_NAME)}"
        raise UnsupportedDataTypeError.at(where, expected=expected, got=shown(value))
    return found


def to_backend(value: data_type, where: str) -> DataType:
    """The backend's member; raises UnsupportedDataTypeError for NOT_SET and types that no operation takes."""
    found = _BACKEND.get(value)
    if found is None:
        names = ", ".join(known.name for known in dtypes.supported())
        raise UnsupportedDataTypeError.at(where, expected=f"one of {names}", got=value.name)
    return found


def compute_to_backend(value: data_type, where: str) -> DataType:
    """The backend's type for the arithmetic of an operation, which may be FAST_FLOAT_FOR_FP8, the type of no tensor."""
    return DataType.FAST_FLOAT_FOR_FP8 if value is data_type.FAST_FLOAT_FOR_FP8 else to_backend(value, where)


def name_of(value: data_type) -> str:
    """The name that NumPy, ml_dtypes or torch gives to the type; raises UnsupportedDataTypeError where none does."""
    found = next((name for name, known in _BY_NAME.items() if known is value), None)
    if found is None:
        raise UnsupportedDataTypeError.at("data_type", expected=f"one of {', '.join(_BY_NAME)}", got=value.name)
    return found


def _member(name: str, where: str) -> data_type:
    found = data_type.__members__.get(name)
    if found is None:
        raise UnsupportedDataTypeError.at(where, expected="a type of the frontend", got=name)
    return found


def _numpy_name(value: object) -> str:
    try:
        return np.dtype(value).name  # type: ignore[call-overload, no-any-return]
    except TypeError:
        return ""
