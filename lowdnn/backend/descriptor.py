"""Descriptors: the generic object behind every backend descriptor type.

A descriptor is created, its attributes are set, it is finalized, and from then on it is read. What attributes it has
comes from one declaring dataclass: fields made with ``schema.attribute`` are settable, methods made with
``read_only`` are computed; ``inert`` lists those that are taken without an effect, ``uncomputed`` those that no engine
computes. ``finalize`` makes the dataclass instance, whose own checks are the descriptor's checks.

A call that fails changes nothing: the descriptor can be corrected and used on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowdnn.backend.inert import InertAttribute, inert_of
from lowdnn.backend.read_only import read_only_of
from lowdnn.backend.uncomputed import Uncomputed, finalized, uncomputed_attributes
from lowdnn.backend.values import HostAddress, as_sequence, check_count, checked, is_enum_number, returned
from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.schema import Attribute, attributes_of
from lowdnn.status import (
    AttributeTypeError,
    BadParamError,
    DescriptorTypeError,
    NotFinalizedError,
    NotSupportedError,
    OutOfBoundError,
    SizeInsufficientError,
)


class Descriptor:
    """One backend descriptor; made by ``lowdnn.backend.create``.

    ``type`` is its DescriptorType, ``value`` the immutable object that it became when it was finalized.
    """

    def __init__(self, declaration: type) -> None:
        self.type: DescriptorType = declaration.descriptor_type  # type: ignore[attr-defined]
        self._declaration = declaration
        self._draft: dict[AttributeName, Any] = {}
        self._inert: dict[AttributeName, Any] = {}
        self._value: Any = None

    @classmethod
    def of(cls, value: Any) -> Descriptor:
        """A finalized descriptor of a declared value, as ``get_attribute`` returns for nested descriptors."""
        descriptor = cls(value.declaration if isinstance(value, Uncomputed) else type(value))
        descriptor._value = value
        return descriptor

    @property
    def is_finalized(self) -> bool:
        return self._value is not None

    @property
    def value(self) -> Any:
        """The immutable object; raises NotFinalizedError before ``finalize``."""
        if self._value is None:
            raise NotFinalizedError.at(self._label, expected="a finalized descriptor", got="one that is not")
        return self._value

    def set_attribute(
        self, name: AttributeName, attribute_type: AttributeType, values: object, count: int | None = None
    ) -> None:
        """Sets one attribute: ``values`` is one element, a sequence of elements, or text for CHAR.

        count: the number of elements, if the caller wants it checked (cudnnBackendSetAttribute's elementCount).
        Raises BadParamError after finalize, for another descriptor's attribute or a read-only one, AttributeTypeError
        for another type, OutOfBoundError for too many elements or numbers out of range, SizeInsufficientError for
        none, DescriptorTypeError and NotFinalizedError for nested descriptors.
        """
        where = f"{self._label}.{_text(name)}"
        if self.is_finalized:
            raise BadParamError.at(where, expected="a set before finalize", got="a finalized descriptor")
        inert = self._inert_of(name)
        if inert is not None:
            self._inert[name] = _inert_value(where, inert, attribute_type, values, count)
            return
        declared = self._settable(name)
        if not is_enum_number(attribute_type) or attribute_type not in declared.types:
            raise AttributeTypeError.at(where, expected=_names(declared.types), got=_text(attribute_type))
        elements = as_sequence(where, attribute_type, values, count)
        _check_count(where, len(elements), _least_count(declared), declared.max_count)
        if attribute_type is AttributeType.BACKEND_DESCRIPTOR:
            converted = tuple(_nested(where, declared, element) for element in elements)
        else:
            converted = checked(where, attribute_type, elements)
        self._draft[name] = _field_value(attribute_type, declared, converted)

    def get_attribute(
        self, name: AttributeName, attribute_type: AttributeType, requested_count: int | None = None
    ) -> list[Any]:
        """The elements of one attribute, at most ``requested_count`` of them; empty for an optional one left unset.

        CHAR gives a list with one text. Raises NotFinalizedError before finalize, AttributeTypeError for another
        type, BadParamError for another descriptor's attribute, OutOfBoundError for a negative count.
        """
        where = f"{self._label}.{_text(name)}"
        value = self.value
        if requested_count is not None:
            check_count(f"{where}.requested_count", requested_count)
        inert = self._inert_of(name)
        if inert is not None:
            _check_type(where, inert, attribute_type)
            default = inert.values[:1]
            return [*((self._inert[name],) if name in self._inert else default)][:requested_count]
        computed = read_only_of(self._declaration).get(name) if is_enum_number(name) else None
        types = (computed.type,) if computed else self._declared(name).types
        if not is_enum_number(attribute_type) or attribute_type not in types:
            raise AttributeTypeError.at(where, expected=_names(types), got=_text(attribute_type))
        found = getattr(value, computed.method)() if computed else self._found(self._declared(name), attribute_type)
        elements = returned(where, attribute_type, _elements(found))
        is_nested = attribute_type is AttributeType.BACKEND_DESCRIPTOR
        if AttributeType.BACKEND_DESCRIPTOR in types and any(isinstance(e, int) == is_nested for e in elements):
            raise AttributeTypeError.at(where, expected="the type that was set", got=attribute_type.name)
        is_address = attribute_type is AttributeType.VOID_PTR
        if len(types) > 1 and any(isinstance(element, HostAddress) != is_address for element in elements):
            raise AttributeTypeError.at(where, expected="the type that was set", got=attribute_type.name)
        if is_nested:
            elements = [Descriptor.of(element) for element in elements]
        return elements if requested_count is None else elements[:requested_count]

    def get_attribute_count(self, name: AttributeName, attribute_type: AttributeType) -> int:
        """How many elements ``get_attribute`` would return (cudnnBackendGetAttribute's elementCount)."""
        return len(self.get_attribute(name, attribute_type))

    def finalize(self) -> None:
        """Checks everything that was set and makes the descriptor immutable.

        Raises BadParamError for a missing attribute or a second finalize, NotSupportedError for a descriptor that
        only the library makes, and what the declaration's own checks raise.
        """
        if self.is_finalized:
            raise BadParamError.at(self._label, expected="one finalize", got="a second one")
        declared = attributes_of(self._declaration)
        if not declared:
            raise NotSupportedError.at(
                self._label, expected="a descriptor that callers finalize", got="a read-only one"
            )
        missing = [name.name for name, item in declared.items() if item.required and name not in self._draft]
        if missing:
            raise BadParamError.at(
                self._label, expected="every required attribute", got="none for " + ", ".join(missing)
            )
        self._value = finalized(self._declaration, self._draft)

    def __repr__(self) -> str:
        return f"<{self._label}: {self._value if self.is_finalized else 'not finalized'}>"

    @property
    def _label(self) -> str:
        return f"{self.type.name} descriptor"

    def _inert_of(self, name: AttributeName) -> InertAttribute | None:
        return inert_of(self.type).get(name) if is_enum_number(name) else None

    def _declared(self, name: AttributeName) -> Attribute:
        """The settable attribute ``name``, or the error that says why there is none."""
        own = {**attributes_of(self._declaration), **uncomputed_attributes(self.type)}
        found = own.get(name) if is_enum_number(name) else None
        if found is not None:
            return found
        where = f"{self._label}.{_text(name)}"
        owned = [item.name for item in (*attributes_of(self._declaration), *read_only_of(self._declaration))]
        raise BadParamError.at(where, expected="one of " + ", ".join(owned), got=_text(name))

    def _found(self, declared: Attribute, attribute_type: AttributeType) -> Any:
        """The value of a settable attribute: as it was set here, otherwise of the finalized object."""
        set_here = self._draft.get(declared.name) if declared.name is not None else None
        if set_here is not None and isinstance(set_here, HostAddress) == (attribute_type is AttributeType.VOID_PTR):
            return set_here
        if isinstance(self._value, Uncomputed):
            return self._value.value_of(declared)
        return getattr(self._value, declared.field) if declared.field else None

    def _settable(self, name: AttributeName) -> Attribute:
        is_known = is_enum_number(name) and name in read_only_of(self._declaration)
        if is_known and name not in attributes_of(self._declaration):
            raise BadParamError.at(
                f"{self._label}.{_text(name)}", expected="a get", got="a set of a read-only attribute"
            )
        return self._declared(name)


def _inert_value(
    where: str, inert: InertAttribute, attribute_type: AttributeType, values: object, count: int | None
) -> Any:
    """The one element of an inert attribute; raises NotSupportedError where it asks for something else."""
    _check_type(where, inert, attribute_type)
    elements = as_sequence(where, attribute_type, values, count)
    _check_count(where, len(elements), 1, 1)
    (value,) = checked(where, attribute_type, elements)
    if inert.values and value not in inert.values:
        expected = " or ".join(getattr(known, "name", str(known)) for known in inert.values)
        raise NotSupportedError.at(where, expected=expected, got=getattr(value, "name", value))
    return value


def _check_type(where: str, inert: InertAttribute, attribute_type: AttributeType) -> None:
    if not is_enum_number(attribute_type) or attribute_type != inert.type:
        raise AttributeTypeError.at(where, expected=inert.type.name, got=_text(attribute_type))


def _least_count(declared: Attribute) -> int:
    """An optional array may be set to nothing, which is what it is when it is not set."""
    return 0 if declared.max_count > 1 and not declared.required else 1


def _check_count(where: str, count: int, least: int, most: int) -> None:
    if count < least:
        raise SizeInsufficientError.at(f"{where}.count", expected="at least 1 element", got=0)
    if count > most:
        raise OutOfBoundError.at(f"{where}.count", expected=f"at most {most} elements", got=count)


def _nested(where: str, declared: Attribute, element: object) -> Any:
    if not isinstance(element, Descriptor):
        raise AttributeTypeError.at(where, expected="a Descriptor", got=type(element).__name__)
    if declared.descriptors and element.type not in declared.descriptors:
        raise DescriptorTypeError.at(where, expected=_names(declared.descriptors), got=element.type.name)
    return element.value


def _field_value(attribute_type: AttributeType, declared: Attribute, elements: tuple[Any, ...]) -> Any:
    if attribute_type is AttributeType.CHAR:
        return "".join(elements)
    if attribute_type is AttributeType.VOID_PTR and len(declared.types) > 1:
        elements = tuple(map(HostAddress, elements))
    return elements if declared.max_count > 1 else elements[0]


def _elements(found: object) -> list[Any]:
    if found is None:
        return []
    return list(found) if isinstance(found, tuple) else [found]


def _names(members: Sequence[AttributeType | DescriptorType]) -> str:
    return " or ".join(member.name for member in members)


def _text(value: object) -> str:
    return value.name if isinstance(value, (AttributeName, AttributeType)) else f"{value!r}"[:200]
