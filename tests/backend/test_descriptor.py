"""Descriptors: set, get, finalize, and every misuse of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lowdnn.backend import create
from lowdnn.backend.catalogue import declarations
from lowdnn.backend.inert import inert_of
from lowdnn.backend.read_only import read_only_of
from lowdnn.enums import AttributeName, AttributeType, ConvolutionMode, DataType, DescriptorType, NanPropagation
from lowdnn.schema import attributes_of
from lowdnn.status import (
    AttributeTypeError,
    BadParamError,
    DescriptorTypeError,
    LowdnnError,
    NotFinalizedError,
    NotSupportedError,
    OutOfBoundError,
    ShapeMismatchError,
    SizeInsufficientError,
    Status,
)
from tests.support.descriptors import add, made, tensor

D, N, T = DescriptorType, AttributeName, AttributeType


def test_attributes_read_back_after_finalize() -> None:
    descriptor = tensor(7, (2, 3, 4), (12, 4, 1))
    assert descriptor.get_attribute(N.TENSOR_UNIQUE_ID, T.INT64) == [7]
    assert descriptor.get_attribute(N.TENSOR_DATA_TYPE, T.DATA_TYPE) == [DataType.FLOAT]
    assert descriptor.get_attribute(N.TENSOR_DIMENSIONS, T.INT64) == [2, 3, 4]
    assert descriptor.get_attribute(N.TENSOR_DIMENSIONS, T.INT64, 2) == [2, 3]
    assert descriptor.get_attribute_count(N.TENSOR_STRIDES, T.INT64) == 3


def test_defaults_read_back() -> None:
    descriptor = made(
        DescriptorType.CONVOLUTION,
        (N.CONVOLUTION_COMP_TYPE, T.DATA_TYPE, DataType.FLOAT),
        (N.CONVOLUTION_SPATIAL_DIMS, T.INT64, 1),
        (N.CONVOLUTION_PRE_PADDINGS, T.INT64, (0,)),
        (N.CONVOLUTION_POST_PADDINGS, T.INT64, (0,)),
        (N.CONVOLUTION_FILTER_STRIDES, T.INT64, (1,)),
        (N.CONVOLUTION_DILATIONS, T.INT64, (1,)),
    )
    mode = descriptor.get_attribute(N.CONVOLUTION_CONV_MODE, T.CONVOLUTION_MODE)
    assert mode == [ConvolutionMode.CROSS_CORRELATION]


def test_an_unset_optional_attribute_has_no_elements() -> None:
    operation = add(tensor(1), tensor(2), tensor(3))
    assert operation.get_attribute(N.OPERATION_POINTWISE_TDESC, T.BACKEND_DESCRIPTOR) == []


def test_nested_descriptors_read_back_finalized() -> None:
    operation = add(tensor(1), tensor(2), tensor(3))
    (nested,) = operation.get_attribute(N.OPERATION_POINTWISE_BDESC, T.BACKEND_DESCRIPTOR)
    assert nested.is_finalized
    assert nested.type is DescriptorType.TENSOR
    assert nested.get_attribute(N.TENSOR_UNIQUE_ID, T.INT64) == [2]


def test_a_nested_descriptor_is_taken_as_it_was_when_set() -> None:
    inner = tensor(1)
    operation = add(inner, tensor(2), tensor(3))
    assert operation.value.x is inner.value


def test_enums_may_be_given_by_number() -> None:
    descriptor = create(DescriptorType.TENSOR)
    descriptor.set_attribute(N.TENSOR_DATA_TYPE, T.DATA_TYPE, 2)
    with pytest.raises(OutOfBoundError, match=r"TENSOR_DATA_TYPE\[0\]: expected a number of DataType, got 99"):
        descriptor.set_attribute(N.TENSOR_DATA_TYPE, T.DATA_TYPE, 99)


WRONG_SETS = [
    (N.TENSOR_UNIQUE_ID, T.INT32, 1, AttributeTypeError, "expected INT64, got INT32"),
    (N.TENSOR_UNIQUE_ID, T.INT64, "1", AttributeTypeError, "expected elements of INT64, got '1'"),
    (N.TENSOR_UNIQUE_ID, T.INT64, 1.0, AttributeTypeError, "expected int for INT64, got float 1.0"),
    (N.TENSOR_UNIQUE_ID, T.INT64, True, AttributeTypeError, "expected int for INT64, got bool True"),
    (N.TENSOR_UNIQUE_ID, T.INT64, 2**63, OutOfBoundError, "for INT64, got 9223372036854775808"),
    (N.TENSOR_UNIQUE_ID, T.INT64, (1, 2), OutOfBoundError, "expected at most 1 elements, got 2"),
    (N.TENSOR_DIMENSIONS, T.INT64, (), SizeInsufficientError, "expected at least 1 element, got 0"),
    (N.TENSOR_DIMENSIONS, T.INT64, (1,) * 9, OutOfBoundError, "expected at most 8 elements, got 9"),
    (N.TENSOR_IS_VIRTUAL, T.BOOLEAN, 1, AttributeTypeError, "expected bool for BOOLEAN, got int 1"),
    (N.TENSOR_DATA_TYPE, T.DATA_TYPE, ConvolutionMode.CONVOLUTION, AttributeTypeError, "expected DataType"),
    (N.MATMUL_COMP_TYPE, T.DATA_TYPE, DataType.FLOAT, BadParamError, "got MATMUL_COMP_TYPE"),
    (N.TENSOR_CONSTANT_VALUE, T.INT32, 1, AttributeTypeError, "expected DOUBLE or FLOAT or INT64 or VOID_PTR"),
]


@pytest.mark.parametrize(("name", "attribute_type", "values", "error", "text"), WRONG_SETS)
def test_a_wrong_set_is_named_and_changes_nothing(
    name: AttributeName, attribute_type: AttributeType, values: object, error: type[LowdnnError], text: str
) -> None:
    descriptor = create(DescriptorType.TENSOR)
    good = (
        (N.TENSOR_UNIQUE_ID, T.INT64, 5),
        (N.TENSOR_DATA_TYPE, T.DATA_TYPE, DataType.HALF),
        (N.TENSOR_DIMENSIONS, T.INT64, (4,)),
        (N.TENSOR_STRIDES, T.INT64, (1,)),
        (N.TENSOR_BYTE_ALIGNMENT, T.INT64, 16),
    )
    for attribute in good:
        descriptor.set_attribute(*attribute)
    with pytest.raises(error) as caught:
        descriptor.set_attribute(name, attribute_type, values)
    assert type(caught.value) is error
    assert "TENSOR descriptor." in str(caught.value)
    assert text in str(caught.value)
    descriptor.finalize()
    assert descriptor.get_attribute(N.TENSOR_UNIQUE_ID, T.INT64) == [5]
    assert descriptor.get_attribute(N.TENSOR_DIMENSIONS, T.INT64) == [4]


def test_the_count_is_checked_where_it_is_given() -> None:
    descriptor = create(DescriptorType.TENSOR)
    descriptor.set_attribute(N.TENSOR_DIMENSIONS, T.INT64, (1, 2), count=2)
    with pytest.raises(BadParamError, match=r"TENSOR_DIMENSIONS.count: expected 2, the elements given, got 3"):
        descriptor.set_attribute(N.TENSOR_DIMENSIONS, T.INT64, (1, 2), count=3)


def test_get_before_finalize() -> None:
    descriptor = create(DescriptorType.TENSOR)
    with pytest.raises(NotFinalizedError) as caught:
        descriptor.get_attribute(N.TENSOR_UNIQUE_ID, T.INT64)
    assert caught.value.status is Status.BAD_PARAM_NOT_FINALIZED


def test_set_after_finalize() -> None:
    descriptor = tensor(1)
    with pytest.raises(BadParamError, match="expected a set before finalize"):
        descriptor.set_attribute(N.TENSOR_UNIQUE_ID, T.INT64, 2)
    assert descriptor.get_attribute(N.TENSOR_UNIQUE_ID, T.INT64) == [1]


def test_finalize_twice() -> None:
    with pytest.raises(BadParamError, match="expected one finalize, got a second one"):
        tensor(1).finalize()


def test_finalize_names_every_missing_attribute() -> None:
    descriptor = create(DescriptorType.MATMUL)
    with pytest.raises(BadParamError, match="got none for MATMUL_COMP_TYPE"):
        descriptor.finalize()
    descriptor.set_attribute(N.MATMUL_COMP_TYPE, T.DATA_TYPE, DataType.FLOAT)
    descriptor.finalize()


def test_a_failed_finalize_can_be_corrected() -> None:
    descriptor = create(DescriptorType.TENSOR)
    descriptor.set_attribute(N.TENSOR_UNIQUE_ID, T.INT64, 1)
    descriptor.set_attribute(N.TENSOR_DATA_TYPE, T.DATA_TYPE, DataType.FLOAT)
    descriptor.set_attribute(N.TENSOR_DIMENSIONS, T.INT64, (4, 8))
    descriptor.set_attribute(N.TENSOR_STRIDES, T.INT64, (1,))
    descriptor.set_attribute(N.TENSOR_BYTE_ALIGNMENT, T.INT64, 16)
    with pytest.raises(BadParamError, match="strides: expected 2 strides"):
        descriptor.finalize()
    assert not descriptor.is_finalized
    descriptor.set_attribute(N.TENSOR_STRIDES, T.INT64, (8, 1))
    descriptor.finalize()


def test_a_nested_descriptor_must_be_finalized_and_of_the_right_type() -> None:
    operation = create(DescriptorType.OPERATION_POINTWISE)
    with pytest.raises(NotFinalizedError):
        operation.set_attribute(N.OPERATION_POINTWISE_XDESC, T.BACKEND_DESCRIPTOR, create(DescriptorType.TENSOR))
    with pytest.raises(DescriptorTypeError, match="expected POINTWISE, got TENSOR"):
        operation.set_attribute(N.OPERATION_POINTWISE_PW_DESCRIPTOR, T.BACKEND_DESCRIPTOR, tensor(1))
    with pytest.raises(AttributeTypeError, match="expected a Descriptor, got int"):
        operation.set_attribute(N.OPERATION_POINTWISE_XDESC, T.BACKEND_DESCRIPTOR, 3)


def test_wrong_gets() -> None:
    descriptor = tensor(1)
    with pytest.raises(AttributeTypeError, match="expected INT64, got DOUBLE"):
        descriptor.get_attribute(N.TENSOR_UNIQUE_ID, T.DOUBLE)
    with pytest.raises(BadParamError, match="expected one of TENSOR_UNIQUE_ID"):
        descriptor.get_attribute(N.MATMUL_COMP_TYPE, T.DATA_TYPE)
    with pytest.raises(OutOfBoundError, match=r"requested_count: expected 0 to .*, got -1"):
        descriptor.get_attribute(N.TENSOR_UNIQUE_ID, T.INT64, -1)


def test_operation_checks_are_those_of_the_operation() -> None:
    with pytest.raises(ShapeMismatchError, match=r"pointwise.b.dims"):
        add(tensor(1), tensor(2, (3, 8)), tensor(3))


@pytest.mark.parametrize(
    "descriptor_type", [DescriptorType.KNOB_INFO, DescriptorType.LAYOUT_INFO, DescriptorType.INTERMEDIATE_INFO]
)
def test_descriptors_that_only_the_library_makes(descriptor_type: DescriptorType) -> None:
    with pytest.raises(NotSupportedError, match="got a read-only one"):
        create(descriptor_type).finalize()


def test_a_descriptor_type_that_does_not_exist_here() -> None:
    with pytest.raises(NotSupportedError, match=r"create.descriptor_type: expected one of POINTWISE, .* got 51"):
        create(51)  # type: ignore[arg-type]


def test_the_representation_shows_the_state() -> None:
    assert "not finalized" in repr(create(DescriptorType.TENSOR))
    assert "uid=1" in repr(tensor(1))


@pytest.mark.parametrize(
    ("descriptor", "name", "kind", "taken", "refused"),
    [
        (D.POINTWISE, N.POINTWISE_NAN_PROPAGATION, T.NAN_PROPOGATION, [NanPropagation.PROPAGATE_NAN], 0),
        (D.OPERATION_MATMUL, N.OPERATION_MATMUL_IRREGULARLY_STRIDED_BATCH_COUNT, T.INT64, [1], 2),
        (D.OPERATION_SDPA_FWD, N.OPERATION_SDPA_FWD_UNFUSE_FMA, T.BOOLEAN, [False, True], None),
    ],
)
def test_attributes_that_change_nothing(
    descriptor: DescriptorType, name: AttributeName, kind: AttributeType, taken: list[Any], refused: Any
) -> None:
    for value in taken:
        create(descriptor).set_attribute(name, kind, value)
    if refused is not None:
        with pytest.raises(NotSupportedError, match=f"{name.name}: expected"):
            create(descriptor).set_attribute(name, kind, refused)
    for wrong in (T.FLOAT, None):
        with pytest.raises(AttributeTypeError, match=f"expected {kind.name}"):
            create(descriptor).set_attribute(name, wrong, taken[0])  # type: ignore[arg-type]
    with pytest.raises(AttributeTypeError):
        create(descriptor).set_attribute(name, kind, "yes")
    with pytest.raises(OutOfBoundError, match="at most 1 element"):
        create(descriptor).set_attribute(name, kind, [taken[0]] * 2)


def test_inert_attributes_read_back_and_leave_the_graph_as_it_is() -> None:
    attributes = ((N.POINTWISE_MODE, T.POINTWISE_MODE, 100), (N.POINTWISE_MATH_PREC, T.DATA_TYPE, DataType.FLOAT))
    plain = made(D.POINTWISE, *attributes)
    asked = made(D.POINTWISE, *attributes, (N.POINTWISE_NAN_PROPAGATION, T.NAN_PROPOGATION, 1))
    for found in (plain, asked):
        assert found.get_attribute(N.POINTWISE_NAN_PROPAGATION, T.NAN_PROPOGATION) == [NanPropagation.PROPAGATE_NAN]
    assert plain.value == asked.value


def test_integers_that_fit_are_set_as_any_values_are() -> None:
    rng = np.random.default_rng()
    for kind, declaration in declarations().items():
        for name in [*attributes_of(declaration), *inert_of(kind), *read_only_of(declaration)]:
            for attribute_type in (T.INT32, T.INT64, T.VOID_PTR):
                values = tuple(map(int, rng.integers(0, 2**31, rng.choice([0, 1, 1, 2, 9]))))
                one, other = create(kind), create(kind)
                expected = _error_of(one.set_attribute, name, attribute_type, values)
                assert (
                    _error_of(other.set_from, name, attribute_type, len(values), lambda given=values: given) == expected
                )
                assert vars(other) == vars(one)


def _error_of(call: Callable[..., None], *arguments: object) -> str:
    try:
        call(*arguments)
    except LowdnnError as error:
        return f"{type(error).__name__}: {error}"
    return ""
