"""The enums have the names and numbers of cuDNN 9.28; descriptor types and attributes: ``backend/test_inventory``."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowdnn import enums
from lowdnn.enums import (
    OWN_NUMBERS,
    AttributeName,
    AttributeType,
    CudnnEnum,
    DataType,
    DescriptorType,
    PointwiseMode,
)

ENUMS = [
    cls for cls in vars(enums).values() if isinstance(cls, type) and issubclass(cls, CudnnEnum) and cls is not CudnnEnum
]


@pytest.mark.parametrize(
    ("member", "value", "c_name"),
    [
        (DataType.BFLOAT16, 9, "CUDNN_DATA_BFLOAT16"),
        (DataType.FP8_E5M2, 13, "CUDNN_DATA_FP8_E5M2"),
        (PointwiseMode.ADD_SQUARE, 5, "CUDNN_POINTWISE_ADD_SQUARE"),
        (PointwiseMode.FLOOR_MOD, 24, "CUDNN_POINTWISE_FLOOR_MOD"),
        (PointwiseMode.BINARY_SELECT, 601, "CUDNN_POINTWISE_BINARY_SELECT"),
        (DescriptorType.OPERATION_REDUCTION, 22, "CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR"),
        (AttributeName.OPERATION_POINTWISE_TDESC, 758, "CUDNN_ATTR_OPERATION_POINTWISE_TDESC"),
        (AttributeName.REDUCTION_IS_DETERMINISTIC, 1602, "CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC"),
        (AttributeType.BACKEND_DESCRIPTOR, 15, "CUDNN_TYPE_BACKEND_DESCRIPTOR"),
        (enums.ReduceTensorOp.MUL_NO_ZEROS, 8, "CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS"),
        (enums.HeurMode.FALLBACK, 2, "CUDNN_HEUR_MODE_FALLBACK"),
        (enums.KnobType.OUTPUT_TMA_ENABLE, 45, "CUDNN_KNOB_TYPE_OUTPUT_TMA_ENABLE"),
        (enums.KnobType.THREADS_PER_ROW, 10000, "LOWDNN_KNOB_TYPE_THREADS_PER_ROW"),
        (enums.ConvolutionMode.CROSS_CORRELATION, 1, "CUDNN_CROSS_CORRELATION"),
    ],
)
def test_values_and_names(member: CudnnEnum, value: int, c_name: str) -> None:
    assert member == value
    assert member.c_name == c_name


def numbers() -> dict[str, dict[str, int]]:
    """The numbers of all enums by C type and C name."""
    found: dict[str, dict[str, int]] = {}
    c_type = ""
    for line in Path(__file__).with_name("enum_numbers.txt").read_text().splitlines():
        if line.startswith(" "):
            pairs = (item.split("=") for item in line.split())
            found[c_type] |= {f"CUDNN_{name}": int(number) for name, number in pairs}
        elif not line.startswith("#"):
            c_type = line
            found[c_type] = {}
    return found


@pytest.mark.parametrize("c_type", numbers())
def test_every_enum_has_cudnns_names_and_numbers(c_type: str) -> None:
    (cls,) = [cls for cls in ENUMS if (cls.__doc__ or "").startswith(c_type)]
    own = {f"{cls.c_prefix}{name}": member for name, member in cls.__members__.items() if member < OWN_NUMBERS}
    assert own == numbers()[c_type]


def test_every_enum_is_in_the_table() -> None:
    named = {(cls.__doc__ or "").split(".")[0].split(",")[0].split(":")[0].split(";")[0] for cls in ENUMS}
    assert named == {*numbers(), "cudnnBackendDescriptorType_t", "cudnnBackendAttributeName_t"}


def test_sizes() -> None:
    assert len(PointwiseMode) == 52
    assert len(DescriptorType) == 51
    assert len(AttributeName) == 383
    assert sum(len(cls.__members__) for cls in ENUMS) == 717


def test_c_names_are_unique() -> None:
    names = [member.c_name for cls in ENUMS for member in cls]
    assert len(set(names)) == len(names)


def test_members_are_true_whatever_their_number() -> None:
    assert DataType.FLOAT == 0
    assert all(member for cls in ENUMS for member in cls)
