"""Checks and converts attribute elements, from the caller's arguments of ``set_attribute`` to the values of a
declaration's fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from fractions import Fraction
from typing import Any

import numpy as np

from lowdnn.backend.handle import Handle
from lowdnn.checks import integer
from lowdnn.enums import AttributeType, DataType
from lowdnn.runtime.parameters import read_host_value
from lowdnn.runtime.variant_pack import LOWEST_HOST_ADDRESS
from lowdnn.schema import ELEMENT_TYPES
from lowdnn.status import AttributeTypeError, BadParamError, NullPointerError, OutOfBoundError

#: Inclusive limits of the integer types.
_LIMITS = {
    AttributeType.INT32: (-(2**31), 2**31 - 1),
    AttributeType.INT64: (-(2**63), 2**63 - 1),
    AttributeType.VOID_PTR: (0, 2**64 - 1),
}


class HostAddress(int):
    """The host address of a number, where the number itself may be given too."""


class ReadAddress(HostAddress):
    """The host address of a number that was read when the address was set; ``number`` is what lay there."""

    number: int | float

    @classmethod
    def of(cls, where: str, address: int, data_type: DataType) -> ReadAddress:
        """Reads a number of ``data_type``; raises as ``check_host_address``."""
        check_host_address(where, address)
        found = cls(address)
        found.number = read_host_value(address, data_type)
        return found


def check_host_address(where: str, address: int) -> None:
    """Raises NullPointerError and BadParamError for what cannot be the address of a number."""
    if not address:
        raise NullPointerError.at(where, expected="a host address", got="a null pointer")
    if address < LOWEST_HOST_ADDRESS:
        expected = f"a host address of at least {LOWEST_HOST_ADDRESS}"
        raise BadParamError.at(where, expected=expected, got=address, hint="give the address of the number")


def is_enum_number(value: object) -> bool:
    """True for a member of an enum and for its number, as C passes them; anything else cannot be looked up."""
    return isinstance(value, int) and not isinstance(value, bool)


def as_sequence(where: str, attribute_type: AttributeType, values: object, count: int | None) -> Sequence[Any]:
    """``values`` (one element, a sequence, or text for CHAR) as a sequence of ``count`` elements."""
    if isinstance(values, str) and attribute_type is not AttributeType.CHAR:
        raise AttributeTypeError.at(where, expected=f"elements of {attribute_type.name}", got=repr(values))
    elements = values if isinstance(values, Sequence) else _elements_of(values)
    if count is not None:
        integer(count, f"{where}.count", 0)
    if count is not None and count != len(elements):
        raise BadParamError.at(f"{where}.count", expected=f"{len(elements)}, the elements given", got=count)
    return elements


def _elements_of(value: object) -> Sequence[Any]:
    # Shapes and strides are often computed with NumPy.
    return tuple(value.reshape(-1)) if isinstance(value, np.ndarray) else (value,)


def checked(where: str, attribute_type: AttributeType, elements: Sequence[Any]) -> tuple[Any, ...]:
    """The elements in the attribute type's Python type.

    An enum may be given by number, a float or a fraction as an integer, NumPy's numbers for Python's; nothing else is
    converted. Whole fractions become integers, so that there is one form of each value.
    Raises AttributeTypeError, and OutOfBoundError for a number that the type cannot hold.
    """
    wanted = Handle if attribute_type is AttributeType.HANDLE else ELEMENT_TYPES.get(attribute_type)
    if wanted is None:
        raise AttributeTypeError.at(where, expected="an attribute type with values", got=attribute_type.name)
    return tuple(_element(where, index, attribute_type, wanted, value) for index, value in enumerate(elements))


def _element(where: str, index: int, attribute_type: AttributeType, wanted: type, value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if issubclass(wanted, IntEnum) and type(value) is int:
        return _member(f"{where}[{index}]", wanted, value)
    if wanted is float and type(value) is int:
        return float(value)
    if wanted is Fraction:
        return _rational(where, index, value)
    fits = type(value) is wanted if wanted in (int, bool) else isinstance(value, wanted)
    if not fits:
        raise AttributeTypeError.at(
            f"{where}[{index}]",
            expected=f"{wanted.__name__} for {attribute_type.name}",
            got=f"{type(value).__name__} {value!r}",
        )
    least, most = _LIMITS.get(attribute_type, (None, None))
    if least is not None and most is not None and not least <= value <= most:
        raise OutOfBoundError.at(
            f"{where}[{index}]", expected=f"{least} to {most} for {attribute_type.name}", got=value
        )
    return value


def _member(where: str, wanted: type[IntEnum], number: int) -> IntEnum:
    try:
        return wanted(number)
    except ValueError:
        raise OutOfBoundError.at(where, expected=f"a number of {wanted.__name__}", got=number) from None


def _rational(where: str, index: int, value: Any) -> int | Fraction:
    """An integer or a fraction as it is kept."""
    if isinstance(value, bool) or not isinstance(value, (int, Fraction)):
        raise AttributeTypeError.at(
            f"{where}[{index}]",
            expected="Fraction or int for FRACTION",
            got=f"{type(value).__name__} {value!r}",
        )
    least, most = _LIMITS[AttributeType.INT64]
    if not least <= value.numerator <= most or value.denominator > most:
        raise OutOfBoundError.at(f"{where}[{index}]", expected="numerator and denominator of 64 bits", got=value)
    return value.numerator if value.denominator == 1 else value


def holds_addresses(value: object) -> bool:
    """Whether the kept elements of an attribute, which takes numbers or their addresses, are addresses."""
    return isinstance(value[0] if isinstance(value, tuple) and value else value, HostAddress)


def returned(
    where: str, attribute_type: AttributeType, elements: list[Any], types: tuple[AttributeType, ...]
) -> list[Any]:
    """The kept elements of an attribute of several ``types``, in the one in which they are asked for.

    Numbers have several forms. Raises AttributeTypeError for a number that is asked for as an integer and is none, for
    a descriptor or an address that is asked for as a number, and the other way round.
    """
    found = {_form_of(element, types) for element in elements}
    if found - {attribute_type if attribute_type in _FORMS else None}:
        raise AttributeTypeError.at(where, expected="the type that was set", got=attribute_type.name)
    convert = _CONVERSIONS.get(attribute_type)
    if convert is None:
        return elements
    if convert is int and any(element != element // 1 for element in elements):
        raise AttributeTypeError.at(where, expected="another type for what is not whole", got=attribute_type.name)
    return [convert(element) for element in elements]


#: The Python conversion for each numeric type of attributes that accept several types.
_CONVERSIONS: Mapping[AttributeType, type[int | float | Fraction]] = {
    AttributeType.INT64: int,
    AttributeType.DOUBLE: float,
    AttributeType.FLOAT: float,
    AttributeType.FRACTION: Fraction,
}
#: Attribute types whose elements are not numbers.
_FORMS = (AttributeType.BACKEND_DESCRIPTOR, AttributeType.VOID_PTR)


def _form_of(element: object, types: tuple[AttributeType, ...]) -> AttributeType | None:
    """The type of ``_FORMS`` that the element has, or None for a number."""
    if isinstance(element, HostAddress):
        return AttributeType.VOID_PTR
    is_number = isinstance(element, (int, float, Fraction))
    return AttributeType.BACKEND_DESCRIPTOR if AttributeType.BACKEND_DESCRIPTOR in types and not is_number else None
