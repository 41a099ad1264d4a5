"""Compile-time constants: numbers in the graph itself, given or read from where they lie on the host."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.backend import Descriptor, Handle, create, execute
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType
from lowdnn.status import AttributeTypeError, BadParamError, NullPointerError
from tests.support.descriptors import add, best_config, made, plan_of, tensor, variant_pack
from tests.support.runtime import download, upload

N, T, D = AttributeName, AttributeType, DescriptorType


def constant(data_type: DataType, kind: AttributeType, value: object, dims: tuple[int, ...] = (1, 1)) -> Descriptor:
    """A constant with the uid 2, by value as well, as cudnn-frontend makes them."""
    return made(
        D.TENSOR,
        (N.TENSOR_UNIQUE_ID, T.INT64, 2),
        (N.TENSOR_DATA_TYPE, T.DATA_TYPE, data_type),
        (N.TENSOR_DIMENSIONS, T.INT64, dims),
        (N.TENSOR_STRIDES, T.INT64, (1,) * len(dims)),
        (N.TENSOR_BYTE_ALIGNMENT, T.INT64, 16),
        (N.TENSOR_IS_BY_VALUE, T.BOOLEAN, True),
        (N.TENSOR_CONSTANT_VALUE, kind, value),
    )


def stored(value: float, data_type: DataType) -> NDArray[Any]:
    return dtypes.from_float64(np.array([value]), data_type)


@pytest.mark.parametrize(
    "data_type", [DataType.FLOAT, DataType.HALF, DataType.BFLOAT16, DataType.DOUBLE, DataType.INT32]
)
def test_a_constant_at_an_address(handle: Handle, data_type: DataType) -> None:
    host = stored(3, data_type)
    number = constant(data_type, T.VOID_PTR, host.ctypes.data)
    host[:] = 0  # the value was read when the descriptor was finalized
    assert number.get_attribute(N.TENSOR_CONSTANT_VALUE, T.VOID_PTR) == [host.ctypes.data]
    assert number.get_attribute(N.TENSOR_IS_BY_VALUE, T.BOOLEAN) == [True]
    assert number.value.constant_value == 3
    graph = made(
        D.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, add(tensor(1), number, tensor(3))),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
    )
    plan = plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
    x, y = (upload(handle.runtime, np.arange(32, dtype=np.float32)) for _ in range(2))
    execute(handle, plan, variant_pack({1: x.address, 3: y.address}))
    np.testing.assert_array_equal(download(y, np.float32), np.arange(32, dtype=np.float32) + 3)


@pytest.mark.parametrize(("kind", "value"), [(T.DOUBLE, 0.5), (T.FLOAT, 0.5), (T.INT64, 3)])
def test_a_constant_as_a_number(kind: AttributeType, value: float) -> None:
    number = constant(DataType.FLOAT, kind, value)
    assert number.get_attribute(N.TENSOR_CONSTANT_VALUE, kind) == [value]
    with pytest.raises(AttributeTypeError, match="expected the type that was set, got VOID_PTR"):
        number.get_attribute(N.TENSOR_CONSTANT_VALUE, T.VOID_PTR)


def test_bad_constants() -> None:
    with pytest.raises(NullPointerError, match="TENSOR_CONSTANT_VALUE: expected a host address"):
        constant(DataType.FLOAT, T.VOID_PTR, 0)
    with pytest.raises(BadParamError, match="expected a host address of at least 65536, got 3"):
        constant(DataType.FLOAT, T.VOID_PTR, 3)
    host = ctypes.c_float(1)
    with pytest.raises(BadParamError, match="one element in a by-value tensor"):
        constant(DataType.FLOAT, T.VOID_PTR, ctypes.addressof(host), (2, 1))
    assert create(D.TENSOR).is_finalized is False
