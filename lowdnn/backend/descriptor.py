"""Descriptors: the generic object behind every backend descriptor type.

A descriptor is created, its attributes are set, it is finalized, and from then on it is read. Its attributes come from
one declaring dataclass: fields made with ``schema.attribute`` are settable, methods made with ``read_only`` are
computed; ``inert`` lists those that are taken without an effect, ``uncomputed`` those that no engine computes.
``finalize`` makes the dataclass instance, whose own checks are the descriptor's checks.

A call that fails changes nothing: the descriptor can be corrected and used on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lowdnn.backend.inert import InertAttribute
from lowdnn.backend.slots import Slot, required_of, slots_of
from lowdnn.backend.uncomputed import Uncomputed, check_required, finalized, form_for
from lowdnn.backend.values import (
    HostAddress,
    ReadAddress,
    as_sequence,
    checked,
    holds_addresses,
    is_enum_number,
    returned,
)
from lowdnn.checks import integer
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

#: Types of integers in which every bit pattern is valid.
_INTEGERS = (AttributeType.INT64, AttributeType.VOID_PTR, AttributeType.INT32)


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
            raise self._not_finalized()
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
        slot, kind = self._settable(name, attribute_type)
        elements = as_sequence(slot.where, kind, values, count)
        _check_count(slot, len(elements))
        self._keep(slot, kind, _converted(slot, kind, elements))

    def set_from(
        self, name: AttributeName, attribute_type: AttributeType, count: int, read: Callable[[], Sequence[Any]]
    ) -> None:
        """``set_attribute`` of ``count`` elements that ``read`` gives, which is called when all else is right.

        Integers of INT32, INT64 and VOID_PTR are known to fit, as those of a C array do.
        """
        slot, kind = self._settable(name, attribute_type)
        _check_count(slot, count)
        elements = read()
        self._keep(slot, kind, tuple(elements) if kind in _INTEGERS else _converted(slot, kind, elements))

    def get_attribute(
        self,
        name: AttributeName,
        attribute_type: AttributeType,
        requested_count: int | None = None,
        given: Sequence[Descriptor] = (),
    ) -> list[Any]:
        """The elements of one attribute, at most ``requested_count`` of them; empty for an optional one left unset.

        CHAR gives a list with one text. given: the descriptors in the caller's array, where the attribute is a question
        about them (KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED); the result is those with the answer yes.
        Raises NotFinalizedError before finalize, AttributeTypeError for another type, BadParamError for another
        descriptor's attribute, OutOfBoundError for a negative count.
        """
        if self._value is None:
            raise self._not_finalized()
        slot = self._known(name)
        elements = self._elements(slot, _type_of(slot, slot.read_types, attribute_type), given)
        if requested_count is None:
            return elements
        integer(requested_count, f"{slot.where}.requested_count", 0)
        return elements[:requested_count]

    def is_question(self, name: AttributeName) -> bool:
        """Whether the attribute's value depends on descriptors that the caller passes to a get (``given``). Raises
        BadParamError for an attribute of another descriptor type."""
        computed = self._known(name).computed
        return computed is not None and computed.asked is not None

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
        if not attributes_of(self._declaration):
            raise NotSupportedError.at(
                self._label, expected="a descriptor that callers finalize", got="a read-only one"
            )
        if not self._draft.keys() >= required_of(self._declaration):
            check_required(form_for(self._declaration, self._draft), self._draft)
        self._value = finalized(self._declaration, self._draft)

    def __repr__(self) -> str:
        return f"<{self._label}: {self._value if self.is_finalized else 'not finalized'}>"

    def _not_finalized(self) -> LowdnnError:
        return NotFinalizedError.at(self._label, expected="a finalized descriptor", got="one that is not")

    @property
    def _label(self) -> str:
        return f"{self.type.name} descriptor"

    def _elements(self, slot: Slot, kind: AttributeType, given: Sequence[Descriptor]) -> list[Any]:
        """The elements of the attribute, converted to the type ``kind`` of a get."""
        if slot.computed is not None:
            method = getattr(self._value, slot.computed.method)
            if slot.computed.asked is not None:
                return [element for element in given if method(_nested(slot, element))]
            elements = _as_list(method())
        elif slot.declared is not None:
            elements = _as_list(self._found(slot, slot.declared, kind))
        else:
            elements = _as_list(self._inert.get(slot.name, slot.inert.values[:1] if slot.inert else ()))
        if len(slot.read_types) > 1:
            elements = returned(slot.where, kind, elements, slot.read_types)
        if kind is AttributeType.BACKEND_DESCRIPTOR:
            return [Descriptor.of(element) for element in elements]
        return elements

    def _found(self, slot: Slot, declared: Attribute, kind: AttributeType) -> Any:
        """The value of a settable attribute: addresses as they were set, otherwise that of the finalized object."""
        if kind is AttributeType.VOID_PTR and holds_addresses(self._draft.get(slot.name)):
            return self._draft[slot.name]
        if isinstance(self._value, Uncomputed):
            return self._value.value_of(declared)
        # A special form of an operation does not have the attributes that it does not take.
        return getattr(self._value, declared.field, None) if declared.field else None

    def _settable(self, name: AttributeName, attribute_type: AttributeType) -> tuple[Slot, AttributeType]:
        """The attribute's slot and the type; raises what ``set_attribute`` raises about them."""
        if self._value is not None:
            where = f"{self._label}.{_text(name)}"
            raise BadParamError.at(where, expected="a set before finalize", got="a finalized descriptor")
        slot = self._known(name)
        if not slot.types:
            raise slot.set_error.at(slot.where, expected="a get", got="a set of a read-only attribute")
        return slot, _type_of(slot, slot.types, attribute_type)

    def _keep(self, slot: Slot, kind: AttributeType, elements: tuple[Any, ...]) -> None:
        if slot.pointee is not None and kind is AttributeType.VOID_PTR:
            self._draft[slot.name] = self._read(slot, slot.pointee, elements)
        elif slot.inert is None:
            self._draft[slot.name] = _field_value(kind, slot, elements)
        else:
            self._inert[slot.name] = _inert_value(slot.where, slot.inert, elements[0])

    def _read(self, slot: Slot, pointee: AttributeName, addresses: tuple[int, ...]) -> tuple[ReadAddress, ...]:
        """Reads the numbers at host addresses, and returns both. The data types are those of the tensors of attribute
        ``pointee``, which was set before."""
        tensors = self._draft.get(pointee, ())
        if len(tensors) != len(addresses):
            expected = f"as many as {pointee.name} has, which is set first: {len(tensors)}"
            raise BadParamError.at(f"{slot.where}.count", expected=expected, got=len(addresses))
        return tuple(
            ReadAddress.of(slot.where, address, tensor.data_type)
            for address, tensor in zip(addresses, tensors, strict=True)
        )

    def _known(self, name: AttributeName) -> Slot:
        """The slot of an attribute, which is given as an enum member or by its number; raises BadParamError for another
        attribute."""
        slot = self._slots.get(name) if type(name) is AttributeName or is_enum_number(name) else None
        if slot is not None:
            return slot
        owned = ", ".join(item.name for item in self._slots)
        raise BadParamError.at(f"{self._label}.{_text(name)}", expected=f"one of {owned}", got=_text(name))


def _inert_value(where: str, inert: InertAttribute, value: Any) -> Any:
    """The one element of an inert attribute; raises NotSupportedError where it asks for something else."""
    if inert.values and value not in inert.values:
        expected = " or ".join(getattr(known, "name", str(known)) for known in inert.values)
        raise NotSupportedError.at(where, expected=expected, got=getattr(value, "name", value))
    return value


def _type_of(slot: Slot, types: tuple[AttributeType, ...], attribute_type: AttributeType) -> AttributeType:
    """The member of ``types`` that is given, as such or by its number; raises AttributeTypeError for another."""
    if type(attribute_type) is AttributeType and attribute_type in types:
        return attribute_type
    if is_enum_number(attribute_type) and attribute_type in types:
        return AttributeType(attribute_type)
    raise AttributeTypeError.at(slot.where, expected=_names(types), got=_text(attribute_type))


def _check_count(slot: Slot, count: int) -> None:
    if count < 0:
        integer(count, f"{slot.where}.count", 0)
    if count < slot.least_count:
        raise SizeInsufficientError.at(f"{slot.where}.count", expected="at least 1 element", got=0)
    if count > slot.max_count:
        raise OutOfBoundError.at(f"{slot.where}.count", expected=f"at most {slot.max_count} elements", got=count)


def _converted(slot: Slot, attribute_type: AttributeType, elements: Sequence[Any]) -> tuple[Any, ...]:
    """The elements converted to the declaration's field; raises the errors of ``set_attribute`` about elements."""
    if attribute_type is AttributeType.BACKEND_DESCRIPTOR:
        return tuple(_nested(slot, element) for element in elements)
    return checked(slot.where, attribute_type, elements)


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


def _as_list(found: object) -> list[Any]:
    if found is None:
        return []
    return list(found) if isinstance(found, tuple) else [found]


def _names(members: Sequence[AttributeType | DescriptorType]) -> str:
    return " or ".join(member.name for member in members)


def _text(value: object) -> str:
    return value.name if isinstance(value, (AttributeName, AttributeType)) else f"{value!r}"[:200]
