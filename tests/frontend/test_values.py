"""Data types, enums, array facts and host scalars of the frontend."""

from __future__ import annotations

from enum import IntEnum

import ml_dtypes
import numpy as np
import pytest

import lowdnn.frontend as cudnn
from lowdnn.enums import OWN_NUMBERS, BehaviorNote, DataType, HeurMode, NumericalNote, ReduceTensorOp
from lowdnn.frontend.data_types import as_data_type, to_backend
from lowdnn.frontend.enums import backend_knob, backend_mode, backend_reduction, frontend_knob
from lowdnn.frontend.host_values import host_scalar
from lowdnn.frontend.interop import ArrayFacts, describe
from lowdnn.status import AttributeTypeError, BadParamError, NotSupportedError, UnsupportedDataTypeError


class TorchDtype:
    """Reads like a torch dtype."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"torch.{self._name}"


class DeviceArray:
    """Device memory of somebody else, as far as its interface tells."""

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {"version": 3, "shape": (2, 3), "typestr": "<f2", "data": (4096, False), "strides": (12, 4)}


def test_numbers_are_those_of_cudnn_frontend() -> None:
    assert [int(cudnn.data_type[name]) for name in ("NOT_SET", "FLOAT", "HALF", "BFLOAT16", "FP8_E5M2")] == [
        0,
        1,
        3,
        10,
        15,
    ]
    assert [int(mode) for mode in cudnn.heur_mode] == [0, 1, 2, 3]
    assert (int(cudnn.reduction_mode.ADD), int(cudnn.reduction_mode.MUL_NO_ZEROS)) == (1, 9)
    assert (int(cudnn.convolution_mode.CROSS_CORRELATION), int(cudnn.numerical_note.STRICT_NAN_PROP)) == (2, 10)
    assert (int(cudnn.knob_type.TILE_M), int(cudnn.knob_type.TILE_CGA)) == (26, 32)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (cudnn.data_type.HALF, cudnn.data_type.HALF),
        (DataType.HALF, cudnn.data_type.HALF),
        (TorchDtype("float16"), cudnn.data_type.HALF),
        (TorchDtype("bfloat16"), cudnn.data_type.BFLOAT16),
        (TorchDtype("float8_e4m3fn"), cudnn.data_type.FP8_E4M3),
        (np.float16, cudnn.data_type.HALF),
        (np.dtype(np.int64), cudnn.data_type.INT64),
        (np.dtype(ml_dtypes.bfloat16), cudnn.data_type.BFLOAT16),
        (bool, cudnn.data_type.BOOLEAN),
        ("float32", cudnn.data_type.FLOAT),
        (None, cudnn.data_type.NOT_SET),
    ],
)
def test_data_types_are_taken_from_everywhere(given: object, expected: cudnn.data_type) -> None:
    assert as_data_type(given, "x") is expected


@pytest.mark.parametrize("given", [3, TorchDtype("complex64"), "float17", np.complex64])
def test_what_is_no_data_type(given: object) -> None:
    with pytest.raises(UnsupportedDataTypeError, match="expected a data_type, or a torch or NumPy dtype of"):
        as_data_type(given, "here")


def test_backend_types() -> None:
    assert to_backend(cudnn.data_type.FP8_E4M3, "x") is DataType.FP8_E4M3
    for refused in (cudnn.data_type.NOT_SET, cudnn.data_type.INT8x32, cudnn.data_type.INT4):
        with pytest.raises(UnsupportedDataTypeError):
            to_backend(refused, "x")


@pytest.mark.parametrize(
    ("frontend", "backend", "outside"),
    [
        (cudnn.reduction_mode, ReduceTensorOp, {"NOT_SET"}),
        (cudnn.numerical_note, NumericalNote, set()),
        (cudnn.behavior_note, BehaviorNote, set()),
    ],
)
def test_enums_name_the_same_things(frontend: type[IntEnum], backend: type[IntEnum], outside: set[str]) -> None:
    assert set(frontend.__members__) - outside == {member.name for member in backend if member < OWN_NUMBERS}


def test_enums_convert() -> None:
    assert backend_mode(cudnn.heur_mode.FALLBACK) is HeurMode.FALLBACK
    assert backend_reduction(cudnn.reduction_mode.AVG) is ReduceTensorOp.AVG
    for knob in cudnn.knob_type:
        if knob and not cudnn.is_frontend_knob_type(knob):
            assert frontend_knob(backend_knob(knob, "knob")) is knob
    with pytest.raises(NotSupportedError, match="OPENSOURCE"):
        backend_mode(cudnn.heur_mode.OPENSOURCE)
    with pytest.raises(NotSupportedError, match="knob: expected a knob that an engine has, got PACK_GQA"):
        backend_knob(cudnn.knob_type.PACK_GQA, "knob")
    with pytest.raises(BadParamError, match="NOT_SET"):
        backend_reduction(cudnn.reduction_mode.NOT_SET)


def test_facts_of_arrays() -> None:
    host = np.zeros((2, 3, 4), np.float32).transpose(0, 2, 1)
    assert describe(host) == ArrayFacts((2, 4, 3), (12, 1, 4), DataType.FLOAT, True)
    assert describe(np.float64(1).reshape(())) == ArrayFacts((1,), (1,), DataType.DOUBLE, True)
    assert describe(DeviceArray()) == ArrayFacts((2, 3), (6, 2), DataType.HALF, False)
    with pytest.raises(AttributeTypeError, match=r"tensor_like\.template"):
        describe("nothing")


@pytest.mark.parametrize(
    ("value", "data_type", "expected"),
    [
        (1.5, DataType.FLOAT, np.float32(1.5)),
        (7, DataType.INT64, np.int64(7)),
        (np.float64(0.5), DataType.HALF, np.float16(0.5)),
        (np.full((1, 1, 1), 3.0, np.float32), DataType.DOUBLE, np.float64(3)),
        (1.0, DataType.BFLOAT16, np.uint16(0x3F80)),
        (np.ones(1, ml_dtypes.bfloat16), DataType.FLOAT, np.float32(1)),
    ],
)
def test_host_scalars(value: object, data_type: DataType, expected: np.generic) -> None:
    found = host_scalar(value, data_type, "x")
    assert found.dtype == expected.dtype
    assert found.tolist() == [expected.item()]


@pytest.mark.parametrize("value", [np.zeros(2), "1", None, object()])
def test_what_is_no_host_scalar(value: object) -> None:
    with pytest.raises(AttributeTypeError, match="here: expected a number or a host array of one element"):
        host_scalar(value, DataType.FLOAT, "here")
