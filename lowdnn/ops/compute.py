"""Rules for compute types that several operations share."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import DataType
from lowdnn.ops.tensor import Tensor
from lowdnn.status import UnsupportedDataTypeError

#: Compute types of contractions (convolution, matmul). FLOAT with fp32 inputs means TF32 or true fp32, as the engine's
#: notes say; HALF accumulates at least as precisely as fp16; FAST_FLOAT_FOR_FP8 as the tensor cores do, or better.
_CONTRACTION_TYPES = (
    DataType.FLOAT,
    DataType.DOUBLE,
    DataType.HALF,
    DataType.INT32,
    DataType.FAST_FLOAT_FOR_FP8,
)


def check_compute_type(where: str, compute_type: DataType, operands: tuple[Tensor, ...]) -> None:
    """Checks the compute type of a contraction against its operands; raises UnsupportedDataTypeError."""
    if compute_type not in _CONTRACTION_TYPES:
        raise UnsupportedDataTypeError.at(
            f"{where}.compute_type",
            expected="one of " + ", ".join(t.name for t in _CONTRACTION_TYPES),
            got=compute_type.name,
        )
    for tensor in operands:
        kind = dtypes.info(tensor.data_type).kind
        integer = kind is not dtypes.Kind.FLOAT
        if kind is dtypes.Kind.BOOLEAN or (integer and tensor.data_type not in (DataType.INT8, DataType.INT32)):
            raise UnsupportedDataTypeError.at(
                f"{where}: {tensor.label}.data_type", expected="a float type, INT8 or INT32", got=tensor.data_type.name
            )
        if integer and compute_type is not DataType.INT32:
            raise UnsupportedDataTypeError.at(
                f"{where}.compute_type",
                expected="INT32 for integer operands",
                got=compute_type.name,
                hint=f"{tensor.label} is {tensor.data_type.name}",
            )
        if not integer and compute_type is DataType.INT32:
            raise UnsupportedDataTypeError.at(
                f"{where}.compute_type",
                expected="FLOAT, DOUBLE or HALF for float operands",
                got=compute_type.name,
                hint=f"{tensor.label} is {tensor.data_type.name}",
            )
        if compute_type is DataType.FAST_FLOAT_FOR_FP8 and tensor.data_type not in dtypes.FP8_TYPES:
            raise UnsupportedDataTypeError.at(
                f"{where}: {tensor.label}.data_type",
                expected=f"one of {', '.join(t.name for t in dtypes.FP8_TYPES)} for FAST_FLOAT_FOR_FP8",
                got=tensor.data_type.name,
            )


def accumulator_type(compute_type: DataType) -> DataType:
    """The type that holds the sums of a contraction of ``compute_type``: FLOAT for HALF and FAST_FLOAT_FOR_FP8."""
    return DataType.FLOAT if compute_type in (DataType.HALF, DataType.FAST_FLOAT_FOR_FP8) else compute_type


def check_float_operands(where: str, operands: tuple[Tensor, ...]) -> None:
    """Checks that no operand is of an integer type; raises UnsupportedDataTypeError."""
    for tensor in operands:
        if dtypes.info(tensor.data_type).kind is not dtypes.Kind.FLOAT:
            raise UnsupportedDataTypeError.at(
                f"{where}: {tensor.label}.data_type", expected="a float type", got=tensor.data_type.name
            )


def wrap_accumulator(values: NDArray[Any], compute_type: DataType) -> NDArray[Any]:
    """Accumulated ``values`` as the compute type holds them: integers wrap at its width, floats stay as they are."""
    return dtypes.wrapped(values, compute_type) if compute_type is DataType.INT32 else values
