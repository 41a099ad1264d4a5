"""Descriptors that no engine computes are set, checked, finalized and read back, and refused where a plan is asked
for."""

from __future__ import annotations

import pytest

from lowdnn.backend import Descriptor, create
from lowdnn.backend.uncomputed import uncomputed_attributes
from lowdnn.enums import (
    AttributeName,
    AttributeType,
    DataType,
    DescriptorType,
    HeurMode,
    ReduceTensorOp,
    SignalMode,
    TensorReordering,
)
from lowdnn.status import BadParamError, NotSupportedError, Status, UnsupportedDataTypeError
from tests.support.descriptors import add, add_graph, device_properties, made, tensor

N, T, D = AttributeName, AttributeType, DescriptorType


def graph_of(*operations: Descriptor) -> Descriptor:
    return made(D.OPERATIONGRAPH, (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, operations))


def refusal_of(graph: Descriptor) -> NotSupportedError:
    """The refusals of the heuristics and of each engine for the graph."""
    with pytest.raises(NotSupportedError) as caught:
        made(
            D.ENGINEHEUR,
            (N.ENGINEHEUR_MODE, T.HEUR_MODE, HeurMode.A),
            (N.ENGINEHEUR_OPERATION_GRAPH, T.BACKEND_DESCRIPTOR, graph),
            (N.ENGINEHEUR_DEVICEPROP, T.BACKEND_DESCRIPTOR, device_properties()),
        )
    with pytest.raises(type(caught.value), match="expected"):
        made(
            D.ENGINE,
            (N.ENGINE_OPERATION_GRAPH, T.BACKEND_DESCRIPTOR, graph),
            (N.ENGINE_GLOBAL_INDEX, T.INT64, 0),
            (N.ENGINE_DEVICEPROP, T.BACKEND_DESCRIPTOR, device_properties()),
        )
    return caught.value


def operation(kind: DescriptorType) -> Descriptor:
    """An operation, not finalized, with every required attribute set; shapes need not fit."""
    descriptor = create(kind)
    given: dict[DescriptorType, tuple[tuple[AttributeName, AttributeType, object], ...]] = {
        D.OPERATION_REDUCTION: (
            (
                N.OPERATION_REDUCTION_DESC,
                T.BACKEND_DESCRIPTOR,
                made(
                    D.REDUCTION,
                    (N.REDUCTION_OPERATOR, T.REDUCTION_OPERATOR_TYPE, ReduceTensorOp.ADD),
                    (N.REDUCTION_COMP_TYPE, T.DATA_TYPE, DataType.FLOAT),
                ),
            ),
            (N.OPERATION_REDUCTION_XDESC, T.BACKEND_DESCRIPTOR, tensor(1)),
            (N.OPERATION_REDUCTION_YDESC, T.BACKEND_DESCRIPTOR, tensor(3, (4, 1), (1, 1))),
        ),
    }
    for attribute in given[kind]:
        descriptor.set_attribute(*attribute)
    return descriptor


VALUES: dict[AttributeType, object] = {
    T.INT64: 7,
    T.DOUBLE: 0.5,
    T.FLOAT: 0.5,
    T.DATA_TYPE: DataType.FLOAT,
}


@pytest.mark.parametrize("name", uncomputed_attributes(D.OPERATION_REDUCTION))
def test_an_attribute_is_kept_and_refused_with_its_name(name: AttributeName) -> None:
    kind = D.OPERATION_REDUCTION
    declared = uncomputed_attributes(kind)[name]
    attribute_type = declared.types[0]
    nested = {D.TENSOR: tensor(9), D.OPERATIONGRAPH: add_graph()}
    value = nested[declared.descriptors[0]] if declared.descriptors else VALUES[attribute_type]
    descriptor = operation(kind)
    descriptor.set_attribute(name, attribute_type, value)
    descriptor.finalize()
    (found,) = descriptor.get_attribute(name, attribute_type)
    assert found.value == value.value if isinstance(value, Descriptor) else found == value
    graph = graph_of(descriptor)
    assert name.name in str(refusal_of(graph))
    (again,) = graph.get_attribute(N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR)
    assert again.type is kind
    assert again.get_attribute_count(name, attribute_type) == 1


def test_unset_they_are_empty_and_change_nothing() -> None:
    kind = D.OPERATION_REDUCTION
    plain = operation(kind)
    plain.finalize()
    for name, declared in uncomputed_attributes(kind).items():
        assert plain.get_attribute(name, declared.types[0]) == []
    assert graph_of(plain).value.graph.outputs[0].uid == 3


def test_an_array_of_nothing_asks_for_nothing() -> None:
    descriptor = operation(D.OPERATION_REDUCTION)
    descriptor.set_attribute(N.OPERATION_REDUCTION_DIMS, T.INT64, ())
    descriptor.finalize()
    assert descriptor.get_attribute(N.OPERATION_REDUCTION_DIMS, T.INT64) == []
    assert graph_of(descriptor).value.graph.outputs[0].uid == 3


def test_what_is_known_is_still_checked() -> None:
    descriptor = operation(D.OPERATION_REDUCTION)
    descriptor.set_attribute(N.OPERATION_REDUCTION_YDESC, T.BACKEND_DESCRIPTOR, tensor(3, (4, 3), (3, 1)))
    descriptor.set_attribute(N.OPERATION_REDUCTION_GROUP_OFFSET_DESC, T.BACKEND_DESCRIPTOR, tensor(9))
    with pytest.raises(BadParamError, match=r"reduction\.y\.dims"):
        descriptor.finalize()


UNKNOWN_TYPES = [
    DataType.FP4_E2M1,
    DataType.INT4,
    DataType.UINT4,
    DataType.UINT32,
    DataType.COMPLEX_FP32,
    DataType.COMPLEX_FP64,
    DataType.BYTE_BOOLEAN,
    DataType.FP8_E5M3,
]


@pytest.mark.parametrize("data_type", UNKNOWN_TYPES)
def test_a_data_type_that_no_engine_has(data_type: DataType) -> None:
    x = tensor(1, data_type=data_type)
    assert x.get_attribute(N.TENSOR_DATA_TYPE, T.DATA_TYPE) == [data_type]
    assert x.get_attribute(N.TENSOR_IS_VIRTUAL, T.BOOLEAN) == [False]
    assert x.get_attribute(N.TENSOR_VECTOR_COUNT, T.INT64) == [1]
    sum_ = add(x, tensor(2), tensor(3))
    (nested,) = sum_.get_attribute(N.OPERATION_POINTWISE_XDESC, T.BACKEND_DESCRIPTOR)
    assert nested.get_attribute(N.TENSOR_DATA_TYPE, T.DATA_TYPE) == [data_type]
    error = refusal_of(graph_of(sum_))
    assert isinstance(error, UnsupportedDataTypeError)
    assert error.status is Status.NOT_SUPPORTED_DATA_TYPE
    assert "tensor uid 1.data_type: expected one of DOUBLE, FLOAT, HALF" in str(error)
    assert str(error).endswith(f"got {data_type.name}")


def test_such_a_tensor_is_checked_as_any_other() -> None:
    with pytest.raises(BadParamError, match=r"strides: expected 2 strides"):
        tensor(1, (4, 8), (1,), data_type=DataType.FP4_E2M1)
    with pytest.raises(BadParamError, match="alignment_bytes: expected a power of two"):
        made(
            D.TENSOR,
            (N.TENSOR_UNIQUE_ID, T.INT64, 1),
            (N.TENSOR_DATA_TYPE, T.DATA_TYPE, DataType.COMPLEX_FP64),
            (N.TENSOR_DIMENSIONS, T.INT64, (4,)),
            (N.TENSOR_STRIDES, T.INT64, (1,)),
            (N.TENSOR_BYTE_ALIGNMENT, T.INT64, 3),
        )


VECTORS = (
    (N.TENSOR_UNIQUE_ID, T.INT64, 1),
    (N.TENSOR_DATA_TYPE, T.DATA_TYPE, DataType.INT8),
    (N.TENSOR_DIMENSIONS, T.INT64, (4, 8)),
    (N.TENSOR_STRIDES, T.INT64, (8, 1)),
    (N.TENSOR_BYTE_ALIGNMENT, T.INT64, 4),
)


@pytest.mark.parametrize("count", [4, 32])
def test_vectors_of_int8(count: int) -> None:
    count_of = (N.TENSOR_VECTOR_COUNT, T.INT64, count)
    x = made(D.TENSOR, *VECTORS, count_of, (N.TENSOR_VECTORIZED_DIMENSION, T.INT64, 1))
    assert x.get_attribute(N.TENSOR_VECTOR_COUNT, T.INT64) == [count]
    assert f"vector_count: expected 1, got {count}" in str(refusal_of(graph_of(add(x, tensor(2), tensor(3)))))
    with pytest.raises(BadParamError, match="vectorized_dimension: expected 0 to 1"):
        made(D.TENSOR, *VECTORS, count_of)


@pytest.mark.parametrize("reordering", [TensorReordering.INT8x32, TensorReordering.F16x16])
def test_reorderings(reordering: TensorReordering) -> None:
    x = made(D.TENSOR, *VECTORS, (N.TENSOR_REORDERING_MODE, T.TENSOR_REORDERING_MODE, reordering))
    assert x.get_attribute(N.TENSOR_REORDERING_MODE, T.TENSOR_REORDERING_MODE) == [reordering]
    assert reordering.name in str(refusal_of(graph_of(add(x, tensor(2), tensor(3)))))


def test_a_signal() -> None:
    signal = made(
        D.OPERATION_SIGNAL,
        (N.OPERATION_SIGNAL_MODE, T.SIGNAL_MODE, SignalMode.WAIT),
        (N.OPERATION_SIGNAL_FLAGDESC, T.BACKEND_DESCRIPTOR, tensor(1, (1,), (1,), data_type=DataType.INT32)),
        (N.OPERATION_SIGNAL_VALUE, T.INT64, 3),
        (N.OPERATION_SIGNAL_XDESC, T.BACKEND_DESCRIPTOR, tensor(2)),
        (N.OPERATION_SIGNAL_YDESC, T.BACKEND_DESCRIPTOR, tensor(3, is_virtual=True)),
    )
    assert signal.get_attribute(N.OPERATION_SIGNAL_MODE, T.SIGNAL_MODE) == [SignalMode.WAIT]
    assert signal.get_attribute(N.OPERATION_SIGNAL_VALUE, T.INT64) == [3]
    graph = graph_of(signal, add(tensor(3, is_virtual=True), tensor(4), tensor(5)))
    assert "OPERATION_SIGNAL descriptor: expected an operation of one device" in str(refusal_of(graph))
