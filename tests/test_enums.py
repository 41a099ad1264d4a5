"""Spot values; the whole table was compared with cudnn_graph.h of cuDNN 9.28 when it was written."""

from __future__ import annotations

import pytest

from lowdnn import enums
from lowdnn.enums import AttributeName, AttributeType, CudnnEnum, DataType, DescriptorType, PointwiseMode

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


def test_sizes() -> None:
    assert len(PointwiseMode) == 52
    assert len(DescriptorType) == 51
    assert len(AttributeName) == 383
    assert sum(len(cls.__members__) for cls in ENUMS) == 714


def test_c_names_are_unique() -> None:
    names = [member.c_name for cls in ENUMS for member in cls]
    assert len(set(names)) == len(names)


def test_members_are_true_whatever_their_number() -> None:
    assert DataType.FLOAT == 0
    assert all(member for cls in ENUMS for member in cls)
