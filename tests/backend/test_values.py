"""Elements of attributes at the limits of their types."""

from __future__ import annotations

from fractions import Fraction

import pytest

from lowdnn.backend import create
from lowdnn.backend.values import HostAddress, as_sequence, checked, returned
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType
from lowdnn.status import AttributeTypeError, BadParamError, OutOfBoundError

T = AttributeType


@pytest.mark.parametrize(
    ("attribute_type", "least", "most"),
    [(T.INT32, -(2**31), 2**31 - 1), (T.INT64, -(2**63), 2**63 - 1), (T.VOID_PTR, 0, 2**64 - 1)],
)
def test_integers_are_held_to_their_type(attribute_type: AttributeType, least: int, most: int) -> None:
    assert checked("x", attribute_type, (least, most)) == (least, most)
    for value in (least - 1, most + 1):
        with pytest.raises(OutOfBoundError, match=rf"x\[0\]: expected {least} to {most} for {attribute_type.name}"):
            checked("x", attribute_type, (value,))


def test_a_fraction_is_no_integer() -> None:
    types = (T.INT64, T.FRACTION)
    assert returned("x", T.INT64, [3, 4], types) == [3, 4]
    assert returned("x", T.FRACTION, [3, Fraction(1, 2)], types) == [Fraction(3), Fraction(1, 2)]
    with pytest.raises(AttributeTypeError, match="expected another type for what is not whole"):
        returned("x", T.INT64, [3, Fraction(1, 2)], types)


def test_an_address_is_no_number_and_no_number_an_address() -> None:
    types = (T.VOID_PTR, T.DOUBLE)
    assert returned("x", T.VOID_PTR, [HostAddress(5)], types) == [5]
    for kind, value in ((T.DOUBLE, HostAddress(5)), (T.VOID_PTR, 5.0)):
        with pytest.raises(AttributeTypeError, match=f"expected the type that was set, got {kind.name}"):
            returned("x", kind, [value], types)


def test_a_number_has_the_form_of_the_type_that_is_asked_for() -> None:
    types = (T.VOID_PTR, T.DOUBLE, T.INT64)
    assert [type(value) for value in returned("x", T.INT64, [3.0, 4], types)] == [int, int]
    assert [type(value) for value in returned("x", T.DOUBLE, [3.0, 4], types)] == [float, float]
    for value in (0.5, float("inf"), float("nan")):
        with pytest.raises(AttributeTypeError, match="expected another type for what is not whole, got INT64"):
            returned("x", T.INT64, [value], types)


@pytest.mark.parametrize("count", [1, 3])
def test_a_count_is_that_of_the_elements(count: int) -> None:
    assert as_sequence("x", T.INT64, (4, 5), 2) == (4, 5)
    with pytest.raises(BadParamError, match=rf"x\.count: expected 2, the elements given, got {count}"):
        as_sequence("x", T.INT64, (4, 5), count)


def test_every_required_attribute_is_asked_for() -> None:
    descriptor = create(DescriptorType.TENSOR)
    descriptor.set_attribute(AttributeName.TENSOR_DATA_TYPE, T.DATA_TYPE, DataType.FLOAT)
    with pytest.raises(BadParamError, match=r"got none for .*TENSOR_DIMENSIONS") as caught:
        descriptor.finalize()
    assert "TENSOR_DATA_TYPE" not in str(caught.value)
