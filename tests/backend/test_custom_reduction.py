"""OPERATION_REDUCTION with a sub-graph: what a program sets, and the largest element with its index on the device."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from lowdnn.backend import Descriptor, Handle, create, execute
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, PointwiseMode, ReduceTensorOp
from lowdnn.ops.custom_reduction import CustomReduction
from lowdnn.ops.described_reduction import DescribedReduction
from lowdnn.status import AttributeTypeError, BadParamError, LowdnnError, NullPointerError
from tests.support.descriptors import best_config, made, plan_of, tensor, variant_pack
from tests.support.runtime import download, upload

N, T, D = AttributeName, AttributeType, DescriptorType
F32, I32 = DataType.FLOAT, DataType.INT32
Attributes = tuple[tuple[AttributeName, AttributeType, object], ...]


def number(uid: int, data_type: DataType = F32, *, is_virtual: bool = False) -> Descriptor:
    """One number of a child graph, whose uids may be those of the graph around it."""
    return tensor(uid, (1, 1), (1, 1), data_type=data_type, is_virtual=is_virtual)


def pointwise(mode: PointwiseMode, data_type: DataType, **ports: Descriptor) -> Descriptor:
    arithmetic = made(
        D.POINTWISE, (N.POINTWISE_MODE, T.POINTWISE_MODE, mode), (N.POINTWISE_MATH_PREC, T.DATA_TYPE, data_type)
    )
    named = {port: N[f"OPERATION_POINTWISE_{port.upper()}DESC"] for port in ports}
    return made(
        D.OPERATION_POINTWISE,
        (N.OPERATION_POINTWISE_PW_DESCRIPTOR, T.BACKEND_DESCRIPTOR, arithmetic),
        *((named[port], T.BACKEND_DESCRIPTOR, ports[port]) for port in ports),
    )


def graph(*operations: Descriptor, handle: Handle | None = None) -> Descriptor:
    own = () if handle is None else ((N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),)
    return made(D.OPERATIONGRAPH, (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, operations), *own)


def larger() -> Descriptor:
    """(value, index) of the larger one of (1, 2) and (3, 4), of equal ones the left: into (6, 7)."""
    left, left_index, right, right_index = number(1), number(2, I32), number(3), number(4, I32)
    is_left = number(5, DataType.BOOLEAN, is_virtual=True)
    select = PointwiseMode.BINARY_SELECT
    return graph(
        pointwise(PointwiseMode.CMP_GE, F32, x=left, b=right, y=is_left),
        pointwise(select, F32, x=left, b=right, t=is_left, y=number(6)),
        pointwise(select, I32, x=left_index, b=right_index, t=is_left, y=number(7, I32)),
    )


def reduction(*more: Attributes[0], without: tuple[AttributeName, ...] = ()) -> Descriptor:  # type: ignore[valid-type]
    """The reduction of tensors 1 and 2 into 3 and 4, not finalized."""
    first, second = np.float32(-np.inf), np.int32(-1)
    cells = [np.array([value]) for value in (first, second)]
    given: Attributes = (
        (N.OPERATION_REDUCTION_XDESC, T.BACKEND_DESCRIPTOR, (tensor(1), tensor(2, data_type=I32))),
        (
            N.OPERATION_REDUCTION_YDESC,
            T.BACKEND_DESCRIPTOR,
            (tensor(3, (4, 1), (1, 1)), tensor(4, (4, 1), (1, 1), data_type=I32)),
        ),
        (N.OPERATION_REDUCTION_DIMS, T.INT64, (1,)),
        (N.OPERATION_REDUCTION_INIT_VALUES, T.VOID_PTR, tuple(cell.ctypes.data for cell in cells)),
        (N.OPERATION_REDUCTION_SUBGRAPH, T.BACKEND_DESCRIPTOR, larger()),
        (N.OPERATION_REDUCTION_SUBGRAPH_ACCUMULATOR_UIDS, T.INT64, (1, 2)),
        (N.OPERATION_REDUCTION_SUBGRAPH_CURRENT_UIDS, T.INT64, (3, 4)),
        (N.OPERATION_REDUCTION_SUBGRAPH_OUTPUT_UIDS, T.INT64, (6, 7)),
    )
    descriptor = create(D.OPERATION_REDUCTION)
    for name, kind, value in given:
        if name not in without:
            descriptor.set_attribute(name, kind, value)
    for attribute in more:
        descriptor.set_attribute(*attribute)
    return descriptor


def test_the_largest_element_and_its_index(handle: Handle) -> None:
    """The initial values are read when they are set; the memory is gone when the graph is made."""
    described = reduction()
    described.finalize()
    description = graph(described, handle=handle)
    (operation,) = description.value.graph.operations
    assert isinstance(operation, CustomReduction)
    assert operation.initial == (-np.inf, -1)
    values = np.array([[1, 5, 5, 0, 2, 5, 1, 3]] * 4, np.float32)
    values[1, 7] = 9
    index = np.tile(np.arange(8, dtype=np.int32), (4, 1))
    x, i = (upload(handle.runtime, array) for array in (values, index))
    y, j = (upload(handle.runtime, np.zeros(4, kind)) for kind in (np.float32, np.int32))
    plan = plan_of(best_config(description), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
    execute(handle, plan, variant_pack({1: x.address, 2: i.address, 3: y.address, 4: j.address}))
    assert download(y, np.float32).tolist() == [5, 9, 5, 5]
    assert download(j, np.int32).tolist() == [1, 7, 1, 1]


def test_what_was_set_is_read_back() -> None:
    described = reduction((N.OPERATION_REDUCTION_SUBGRAPH_COMPUTE_TYPES, T.DATA_TYPE, (DataType.DOUBLE, I32)))
    described.finalize()
    assert described.get_attribute(N.OPERATION_REDUCTION_DIMS, T.INT64) == [1]
    assert described.get_attribute(N.OPERATION_REDUCTION_INIT_VALUES, T.DOUBLE) == [-np.inf, -1]
    assert len(described.get_attribute(N.OPERATION_REDUCTION_INIT_VALUES, T.VOID_PTR)) == 2
    assert described.get_attribute(N.OPERATION_REDUCTION_SUBGRAPH_OUTPUT_UIDS, T.INT64) == [6, 7]
    (body,) = described.get_attribute(N.OPERATION_REDUCTION_SUBGRAPH, T.BACKEND_DESCRIPTOR)
    assert body.type is D.OPERATIONGRAPH
    assert described.get_attribute_count(N.OPERATION_REDUCTION_XDESC, T.BACKEND_DESCRIPTOR) == 2
    (operation,) = graph(described).value.graph.operations
    assert operation.compute_types == (DataType.DOUBLE, I32)


@pytest.mark.parametrize(
    ("more", "without", "error", "message"),
    [
        ((), (N.OPERATION_REDUCTION_SUBGRAPH,), BadParamError, "either a REDUCTION descriptor or a sub-graph"),
        ((), (N.OPERATION_REDUCTION_DIMS,), BadParamError, r"y\[0\].dims: expected \[4, 8\]"),
        ((), (N.OPERATION_REDUCTION_INIT_VALUES,), BadParamError, "initial: expected 2"),
        (((N.OPERATION_REDUCTION_DIMS, T.INT64, (1, 0)),), (), BadParamError, "ascending axes"),
        (((N.OPERATION_REDUCTION_SUBGRAPH_OUTPUT_UIDS, T.INT64, (6, 99)),), (), BadParamError, r"none of \[99\]"),
        (((N.OPERATION_REDUCTION_SUBGRAPH_CURRENT_UIDS, T.INT64, (3,)),), (), BadParamError, "2, one for each y"),
        (((N.OPERATION_REDUCTION_INIT_VALUES, T.DOUBLE, (0.0, 0.0)),), (), None, ""),
    ],
)
def test_what_is_refused(
    more: Attributes, without: tuple[AttributeName, ...], error: type[LowdnnError] | None, message: str
) -> None:
    described = reduction(*more, without=without)
    if error is None:
        described.finalize()
        return
    with pytest.raises(error, match=message):
        described.finalize()


def test_initial_values_at_addresses_need_the_types_of_y() -> None:
    name, cell = N.OPERATION_REDUCTION_INIT_VALUES, ctypes.c_float(1.0)
    descriptor = create(D.OPERATION_REDUCTION)
    with pytest.raises(BadParamError, match="as many as OPERATION_REDUCTION_YDESC has, which is set first: 0, got 1"):
        descriptor.set_attribute(name, T.VOID_PTR, ctypes.addressof(cell))
    descriptor.set_attribute(N.OPERATION_REDUCTION_YDESC, T.BACKEND_DESCRIPTOR, tensor(3, (4, 1), (1, 1)))
    with pytest.raises(NullPointerError):
        descriptor.set_attribute(name, T.VOID_PTR, 0)
    descriptor.set_attribute(name, T.VOID_PTR, ctypes.addressof(cell))
    with pytest.raises(AttributeTypeError):
        descriptor.set_attribute(name, T.DATA_TYPE, F32)


def test_a_name_and_a_subgraph_are_two_operators() -> None:
    named = made(
        D.REDUCTION,
        (N.REDUCTION_OPERATOR, T.REDUCTION_OPERATOR_TYPE, ReduceTensorOp.ADD),
        (N.REDUCTION_COMP_TYPE, T.DATA_TYPE, F32),
    )
    described = reduction((N.OPERATION_REDUCTION_DESC, T.BACKEND_DESCRIPTOR, named))
    with pytest.raises(BadParamError, match="got both"):
        described.finalize()
    plain = create(D.OPERATION_REDUCTION)
    plain.set_attribute(N.OPERATION_REDUCTION_DESC, T.BACKEND_DESCRIPTOR, named)
    plain.set_attribute(N.OPERATION_REDUCTION_XDESC, T.BACKEND_DESCRIPTOR, tensor(1))
    plain.set_attribute(N.OPERATION_REDUCTION_YDESC, T.BACKEND_DESCRIPTOR, tensor(3, (4, 1), (1, 1)))
    plain.set_attribute(N.OPERATION_REDUCTION_DIMS, T.INT64, 1)
    with pytest.raises(BadParamError, match="axes: expected none without a sub-graph"):
        plain.finalize()


def test_tensors_of_the_subgraph_are_its_own() -> None:
    """Uids of the child graph are those of the graph around it; the operation in the graph has others."""
    described = reduction()
    described.finalize()
    assert isinstance(described.value, DescribedReduction)
    (operation,) = graph(described).value.graph.operations
    inside = {t.uid for t in operation.operator.given} | {op.output.uid for op in operation.operator.operations}
    assert not inside & {1, 2, 3, 4}
