from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.enums import DataType
from lowdnn.plan import (
    Argument,
    KernelRef,
    Launch,
    Plan,
    PlanTensor,
    Scalar,
    ScalarType,
    Struct,
    TensorMap,
    TensorPointer,
    TensorValue,
    ValueCase,
    WorkspacePointer,
)
from lowdnn.runtime.parameters import ParameterBlock, read_host_value
from lowdnn.runtime.tensor_maps import EncodedMap
from lowdnn.status import BadParamError
from lowdnn.tensor_map import TensorMapDataType, TensorMapLayout, TensorMapSwizzle, TiledMap

LAYOUT = TiledMap(TensorMapDataType.FLOAT32, 0, (32, 4), (128,), (32, 4), (1, 1))
I32, I64, F32, F64 = ScalarType.I32, ScalarType.I64, ScalarType.F32, ScalarType.F64


#: Maps of ``address_word`` 2 here, whose address is hidden with a swizzle.
def encode_map(layout: TensorMapLayout) -> EncodedMap:
    return EncodedMap(bytes(range(128)), None if layout.swizzle else 2)


def block_of(plan: Plan) -> ParameterBlock:
    return ParameterBlock(plan, encode_map)


def plan_of(*launches: Sequence[Argument]) -> Plan:
    tensors = (
        PlanTensor(7, "x", DataType.FLOAT, 64, 16, is_output=False),
        PlanTensor(8, "alpha", DataType.HALF, 2, 2, is_output=False, is_by_value=True),
    )
    kernel = KernelRef("k", "k.cu", "sm_80")
    made = tuple(Launch(0, (1, 1, 1), (32, 1, 1), tuple(arguments)) for arguments in launches)
    return Plan("e", 0, "g", "sm_80", (), (kernel,), made, tensors, 512)


def argument(block: ParameterBlock, launch: int, index: int, c_type: type[ctypes.Structure]) -> ctypes.Structure:
    """The argument as the C type that the kernel would see."""
    pointer = ctypes.c_uint64.from_address(block.launch_parameters[launch] + 8 * index).value
    return c_type.from_address(pointer)


class Inner(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int32), ("b", ctypes.c_double))


class Outer(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_int32),
        ("x", ctypes.c_void_p),
        ("inner", Inner),
        ("alpha", ctypes.c_float),
        ("scratch", ctypes.c_void_p),
        ("last", ctypes.c_int32),
    )


OUTER = Struct(
    (
        Scalar(I32, -5),
        TensorPointer(7, 32),
        Struct((Scalar(I32, 3), Scalar(F64, 0.25))),
        TensorValue(8, F32),
        WorkspacePointer(256),
        Scalar(I32, 9),
    )
)


def test_values_land_where_the_kernel_reads_them() -> None:
    block = block_of(plan_of([Scalar(I64, 1)], [Scalar(I32, 4), OUTER]))
    alpha = np.array([1.5], np.float16)
    block.patch_tensors((0x1000, 0))
    block.patch_workspace(0x8000)
    block.patch_values((0x1000, alpha.ctypes.data))
    outer = argument(block, 1, 1, Outer)
    assert (outer.first, outer.x, outer.inner.a, outer.inner.b) == (-5, 0x1020, 3, 0.25)
    assert (outer.alpha, outer.scratch, outer.last) == (1.5, 0x8100, 9)


@pytest.mark.parametrize(
    ("data_type", "scalar", "c_type", "values"),
    [
        (DataType.FLOAT, F32, ctypes.c_float, (1.5, -2.0)),
        (DataType.INT64, ScalarType.U64, ctypes.c_uint64, (2**53 + 1, 7)),
    ],
)
def test_a_value_that_changes_in_place_is_read_again(
    data_type: DataType, scalar: ScalarType, c_type: type[Any], values: tuple[float, float]
) -> None:
    plan = plan_of([TensorValue(8, scalar)])
    plan = replace(plan, tensors=(plan.tensors[0], replace(plan.tensors[1], data_type=data_type)))
    block, held = block_of(plan), np.zeros(1, dtypes.info(data_type).storage)
    pointer = ctypes.c_uint64.from_address(block.launch_parameters[0]).value
    for value in values:
        held[0] = value
        block.patch_values((0, held.ctypes.data))
        assert c_type.from_address(pointer).value == value


def test_a_number_that_follows_from_a_value() -> None:
    block, held = block_of(plan_of([ValueCase(8, I32, -np.inf, 3, -7)])), np.zeros(1, np.float16)
    pointer = ctypes.c_uint64.from_address(block.launch_parameters[0]).value
    for value, number in ((-np.inf, 3), (np.inf, -7), (-60000.0, -7), (np.nan, -7), (-np.inf, 3)):
        held[0] = value
        block.patch_values((0, held.ctypes.data))
        assert ctypes.c_int32.from_address(pointer).value == number


def test_a_pointer_in_several_launches_is_patched_in_all() -> None:
    block = block_of(plan_of([TensorPointer(7)], [TensorPointer(7, 16)]))
    block.patch_tensors((0x40, 0))
    found = [ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(p).value).value for p in block.launch_parameters]
    assert found == [0x40, 0x50]


def test_a_struct_of_several_launches_lies_in_the_block_once() -> None:
    shared = Struct((TensorPointer(7, 16), Scalar(I64, 5)))
    launches = [(shared, Scalar(I32, 1)), (Scalar(I32, 2), shared), (Struct(shared.fields), Scalar(I32, 3))]
    block = block_of(plan_of(*launches))
    assert block.argument_bytes == ((16, 4), (4, 16), (16, 4))
    assert [tensor for _, tensor, _ in block.tensor_slots] == [0, 0]
    block.patch_tensors((0x1000, 0))
    for launch, index, number in ((0, 0, 1), (1, 1, 2), (2, 0, 3)):
        pointer = argument(block, launch, index, ctypes.c_uint64 * 2)
        assert list(pointer) == [0x1010, 5]
        assert argument(block, launch, 1 - index, ctypes.c_int32).value == number


def test_arguments_are_64_byte_aligned() -> None:
    for _ in range(8):
        block = block_of(plan_of([Scalar(I32, 1), OUTER, Scalar(I32, 1), OUTER]))
        pointers = (ctypes.c_uint64 * 4).from_address(block.launch_parameters[0])
        assert all(pointer % 64 == 0 for pointer in pointers)


def test_special_floats_survive() -> None:
    block = block_of(plan_of([Scalar(F32, float("inf")), Scalar(F64, float("nan"))]))
    pointers = (ctypes.c_uint64 * 2).from_address(block.launch_parameters[0])
    assert ctypes.c_float.from_address(pointers[0]).value == float("inf")
    assert np.isnan(ctypes.c_double.from_address(pointers[1]).value)


class Mapped(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_int32),
        ("unused", ctypes.c_uint8 * 60),
        ("x", ctypes.c_uint64 * 16),
        ("scratch", ctypes.c_uint64 * 16),
        ("last", ctypes.c_int32),
    )


def test_addresses_go_into_tensor_maps() -> None:
    maps = (TensorMap(TensorPointer(7, 48), LAYOUT), TensorMap(WorkspacePointer(256), LAYOUT))
    block = block_of(plan_of([Scalar(I32, 1), Struct((Scalar(I32, 2), *maps, Scalar(I32, 3)))]))
    block.patch_tensors((0x1000, 0))
    block.patch_workspace(0x8000)
    mapped = argument(block, 0, 1, Mapped)
    rest = np.arange(128, dtype=np.uint8).view(np.uint64).tolist()
    assert (mapped.first, mapped.last) == (2, 3)
    assert list(mapped.x) == [*rest[:2], 0x1030, *rest[3:]]
    assert list(mapped.scratch) == [*rest[:2], 0x8100, *rest[3:]]
    assert block.map_slots == ()


def test_the_driver_replaces_addresses_that_hide() -> None:
    hiding = replace(LAYOUT, swizzle=TensorMapSwizzle.BYTES_128)
    maps = (TensorMap(TensorPointer(7, 48), hiding), TensorMap(WorkspacePointer(256), hiding))
    block = block_of(plan_of([Struct((Scalar(I32, 2), *maps, Scalar(I32, 3)))]))
    assert block.tensor_slots == ()
    assert block.workspace_slots == ()
    block.patch_maps((0x1000, 0), 0x8000, lambda content, address: content[8:] + address.to_bytes(8, "little"))
    mapped = argument(block, 0, 0, Mapped)
    rest = np.arange(8, 128, dtype=np.uint8).view(np.uint64).tolist()
    assert list(mapped.x) == [*rest, 0x1030]
    assert list(mapped.scratch) == [*rest, 0x8100]
    assert mapped.last == 3


@pytest.mark.parametrize("change", [{"alignment_bytes": 8}, {"size_bytes": 0}, {"is_by_value": True}])
def test_a_tensor_that_no_map_can_take_is_refused(change: dict[str, Any]) -> None:
    plan = plan_of([TensorMap(TensorPointer(7), LAYOUT)])
    plan = replace(plan, tensors=(replace(plan.tensors[0], **change), *plan.tensors[1:]))
    with pytest.raises(BadParamError, match=r"uid 7.*expected device memory aligned to 16 bytes"):
        block_of(plan)


@pytest.mark.parametrize("data_type", dtypes.supported())
def test_host_values_of_every_type(data_type: DataType) -> None:
    stored = dtypes.from_float64(np.array([1.0]), data_type)
    assert read_host_value(stored.ctypes.data, data_type) == 1


def test_large_integers_are_exact() -> None:
    stored = np.array([2**63 - 1])
    assert read_host_value(stored.ctypes.data, DataType.INT64) == 2**63 - 1
