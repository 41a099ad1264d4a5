"""Descriptors: the generic object behind every backend descriptor type.

A descriptor is created, its attributes are set, it is finalized, and from then on it is read. What attributes it has
comes from one declaring dataclass: fields made with ``schema.attribute`` are settable, methods made with
``read_only`` are computed; ``inert`` lists those that are taken without an effect, ``uncomputed`` those that no engine
computes. ``finalize`` makes the dataclass instance, whose own checks are the descriptor's checks.

A call that fails changes nothing: the descriptor can be corrected and used on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lowdnn.backend.inert import InertAttribute, inert_of
from lowdnn.backend.read_only import read_only_of
from lowdnn.backend.slots import Slot, required_of, slots_of
from lowdnn.backend.uncomputed import Uncomputed, finalized, uncomputed_attributes
from lowdnn.backend.values import HostAddress, as_sequence, check_count, checked, is_enum_number, returned
from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.schema import Attribute, attributes_of
from lowdnn.status import (
    AttributeTypeError,
    BadParamError,
    DescriptorTypeError,
    LowdnnError,
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
        self._slots = slots_of(declaration)
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
        slot = self._slot(name, attribute_type)
        elements = as_sequence(slot.where, attribute_type, values, count)
        _check_count(slot, len(elements))
        if attribute_type is AttributeType.BACKEND_DESCRIPTOR:
            converted = tuple(_nested(slot, element) for element in elements)
        else:
            converted = checked(slot.where, attribute_type, elements)
        self._keep(name, attribute_type, slot, converted)

    def set_integers(self, name: AttributeName, attribute_type: AttributeType, values: tuple[int, ...]) -> None:
        """``set_attribute`` for values that are known to fit INT32, INT64 or VOID_PTR, as those of a C array do."""
        slot = self._slot(name, attribute_type)
        _check_count(slot, len(values))
        self._keep(name, attribute_type, slot, values)

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
        if self._value is not None:
            raise BadParamError.at(self._label, expected="one finalize", got="a second one")
        declared = attributes_of(self._declaration)
        if not declared:
            raise NotSupportedError.at(
                self._label, expected="a descriptor that callers finalize", got="a read-only one"
            )
        if not self._draft.keys() >= required_of(self._declaration):
            missing = [name.name for name, item in declared.items() if item.required and name not in self._draft]
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
        if found is None:
            raise self._unknown(name)
        return found

    def _unknown(self, name: AttributeName) -> LowdnnError:
        where = f"{self._label}.{_text(name)}"
        owned = [item.name for item in (*attributes_of(self._declaration), *read_only_of(self._declaration))]
        return BadParamError.at(where, expected="one of " + ", ".join(owned), got=_text(name))

    def _found(self, declared: Attribute, attribute_type: AttributeType) -> Any:
        """The value of a settable attribute: as it was set here, otherwise of the finalized object."""
        set_here = self._draft.get(declared.name) if declared.name is not None else None
        if set_here is not None and isinstance(set_here, HostAddress) == (attribute_type is AttributeType.VOID_PTR):
            return set_here
        if isinstance(self._value, Uncomputed):
            return self._value.value_of(declared)
        return getattr(self._value, declared.field) if declared.field else None

    def _slot(self, name: AttributeName, attribute_type: AttributeType) -> Slot:
        """The attribute's slot; raises what ``set_attribute`` raises about the attribute and its type."""
        if self._value is not None:
            where = f"{self._label}.{_text(name)}"
            raise BadParamError.at(where, expected="a set before finalize", got="a finalized descriptor")
        slot = self._slots.get(name) if type(name) is AttributeName else None
        if slot is None:
            slot = self._numbered_slot(name)
        is_type = type(attribute_type) is AttributeType or is_enum_number(attribute_type)
        if not is_type or attribute_type not in slot.types:
            raise AttributeTypeError.at(slot.where, expected=_names(slot.types), got=_text(attribute_type))
        return slot

    def _keep(self, name: AttributeName, attribute_type: AttributeType, slot: Slot, elements: tuple[Any, ...]) -> None:
        if slot.inert is None:
            self._draft[name] = _field_value(attribute_type, slot, elements)
        else:
            self._inert[name] = _inert_value(slot.where, slot.inert, elements[0])

    def _numbered_slot(self, name: AttributeName) -> Slot:
        """The slot of an attribute given by its number, or the error that says why there is none."""
        where = f"{self._label}.{_text(name)}"
        if is_enum_number(name):
            if name in self._slots:
                return replace(self._slots[name], where=where)
            if name in read_only_of(self._declaration):
                raise BadParamError.at(where, expected="a get", got="a set of a read-only attribute")
        raise self._unknown(name)


def _inert_value(where: str, inert: InertAttribute, value: Any) -> Any:
    """The one element of an inert attribute; raises NotSupportedError where it asks for something else."""
    if inert.values and value not in inert.values:
        expected = " or ".join(getattr(known, "name", str(known)) for known in inert.values)
        raise NotSupportedError.at(where, expected=expected, got=getattr(value, "name", value))
    return value


def _check_type(where: str, inert: InertAttribute, attribute_type: AttributeType) -> None:
    if not is_enum_number(attribute_type) or attribute_type != inert.type:
        raise AttributeTypeError.at(where, expected=inert.type.name, got=_text(attribute_type))


def _check_count(slot: Slot, count: int) -> None:
    if count < slot.least_count:
        raise SizeInsufficientError.at(f"{slot.where}.count", expected="at least 1 element", got=0)
    if count > slot.max_count:
        raise OutOfBoundError.at(f"{slot.where}.count", expected=f"at most {slot.max_count} elements", got=count)


def _nested(slot: Slot, element: object) -> Any:
    where = slot.where
    if not isinstance(element, Descriptor):
        raise AttributeTypeError.at(where, expected="a Descriptor", got=type(element).__name__)
    if slot.descriptors and element.type not in slot.descriptors:
        raise DescriptorTypeError.at(where, expected=_names(slot.descriptors), got=element.type.name)
    return element.value


def _field_value(attribute_type: AttributeType, slot: Slot, elements: tuple[Any, ...]) -> Any:
    if attribute_type is AttributeType.CHAR:
        return "".join(elements)
    if len(slot.types) > 1 and attribute_type is AttributeType.VOID_PTR:
        elements = tuple(map(HostAddress, elements))
    return elements if slot.max_count > 1 else elements[0]


def _elements(found: object) -> list[Any]:
    if found is None:
        return []
    return list(found) if isinstance(found, tuple) else [found]


def _names(members: Sequence[AttributeType | DescriptorType]) -> str:
    return " or ".join(member.name for member in members)


def _text(value: object) -> str:
    return value.name if isinstance(value, (AttributeName, AttributeType)) else f"{value!r}"[:200]
