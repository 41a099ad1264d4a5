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

from lowdnn.backend.inert import InertAttribute
from lowdnn.backend.slots import Slot, required_of, slots_of
from lowdnn.backend.uncomputed import Uncomputed, finalized, form_for
from lowdnn.backend.values import (
    HostAddress,
    ReadAddress,
    as_sequence,
    check_count,
    checked,
    holds_addresses,
    is_enum_number,
    returned,
)
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
        self,
        name: AttributeName,
        attribute_type: AttributeType,
        requested_count: int | None = None,
        given: Sequence[Descriptor] = (),
    ) -> list[Any]:
        """The elements of one attribute, at most ``requested_count`` of them; empty for an optional one left unset.

        CHAR gives a list with one text. given: what the caller's array holds, where the attribute is a question about
        it (KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED): the result is those of them that it is true of.
        Raises NotFinalizedError before finalize, AttributeTypeError for another type, BadParamError for another
        descriptor's attribute, OutOfBoundError for a negative count.
        """
        if self._value is None:
            raise self._not_finalized()
        slot = self._known(name)
        if requested_count is not None:
            check_count(f"{slot.where}.requested_count", requested_count)
        is_type = type(attribute_type) is AttributeType or is_enum_number(attribute_type)
        if not is_type or attribute_type not in slot.read_types:
            raise AttributeTypeError.at(slot.where, expected=_names(slot.read_types), got=_text(attribute_type))
        elements = self._elements(name, slot, attribute_type, given)
        return elements if requested_count is None else elements[:requested_count]

    def is_question(self, name: AttributeName) -> bool:
        """Whether the attribute is a question about what a get is ``given``; raises BadParamError for another's."""
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
            self._check_required()
        self._value = finalized(self._declaration, self._draft)

    def __repr__(self) -> str:
        return f"<{self._label}: {self._value if self.is_finalized else 'not finalized'}>"

    def _check_required(self) -> None:
        """Raises BadParamError for attributes that the descriptor's form needs."""
        needed = required_of(form_for(self._declaration, self._draft))
        missing = [name.name for name in attributes_of(self._declaration) if name in needed - self._draft.keys()]
        if missing:
            raise BadParamError.at(
                self._label, expected="every required attribute", got="none for " + ", ".join(missing)
            )

    def _not_finalized(self) -> LowdnnError:
        return NotFinalizedError.at(self._label, expected="a finalized descriptor", got="one that is not")

    @property
    def _label(self) -> str:
        return f"{self.type.name} descriptor"

    def _elements(
        self, name: AttributeName, slot: Slot, attribute_type: AttributeType, given: Sequence[Descriptor]
    ) -> list[Any]:
        """What a get of ``attribute_type`` returns."""
        if slot.computed is not None:
            method = getattr(self._value, slot.computed.method)
            if slot.computed.asked is not None:
                return [element for element in given if method(_nested(slot, element))]
            elements = _as_list(method())
        elif slot.declared is not None:
            elements = _as_list(self._found(name, slot.declared, attribute_type))
        else:
            elements = _as_list(self._inert.get(name, slot.inert.values[:1] if slot.inert else ()))
        if len(slot.read_types) > 1:
            elements = returned(slot.where, attribute_type, elements, slot.read_types)
        if attribute_type == AttributeType.BACKEND_DESCRIPTOR:
            return [Descriptor.of(element) for element in elements]
        return elements

    def _found(self, name: AttributeName, declared: Attribute, attribute_type: AttributeType) -> Any:
        """The value of a settable attribute: addresses as they were set, otherwise that of the finalized object."""
        if attribute_type == AttributeType.VOID_PTR and holds_addresses(self._draft.get(name)):
            return self._draft[name]
        if isinstance(self._value, Uncomputed):
            return self._value.value_of(declared)
        # A special form of an operation does not have the attributes that it does not take.
        return getattr(self._value, declared.field, None) if declared.field else None

    def _slot(self, name: AttributeName, attribute_type: AttributeType) -> Slot:
        """The attribute's slot; raises what ``set_attribute`` raises about the attribute and its type."""
        if self._value is not None:
            where = f"{self._label}.{_text(name)}"
            raise BadParamError.at(where, expected="a set before finalize", got="a finalized descriptor")
        slot = self._known(name)
        if not slot.types:
            raise BadParamError.at(slot.where, expected="a get", got="a set of a read-only attribute")
        is_type = type(attribute_type) is AttributeType or is_enum_number(attribute_type)
        if not is_type or attribute_type not in slot.types:
            raise AttributeTypeError.at(slot.where, expected=_names(slot.types), got=_text(attribute_type))
        return slot

    def _keep(self, name: AttributeName, attribute_type: AttributeType, slot: Slot, elements: tuple[Any, ...]) -> None:
        if slot.pointee is not None and attribute_type is AttributeType.VOID_PTR:
            self._draft[name] = self._read(slot, slot.pointee, elements)
        elif slot.inert is None:
            self._draft[name] = _field_value(attribute_type, slot, elements)
        else:
            self._inert[name] = _inert_value(slot.where, slot.inert, elements[0])

    def _read(self, slot: Slot, pointee: AttributeName, addresses: tuple[int, ...]) -> tuple[ReadAddress, ...]:
        """The addresses with the numbers that lie there, of the types of the tensors at ``pointee``, set before."""
        tensors = self._draft.get(pointee, ())
        if len(tensors) != len(addresses):
            expected = f"as many as {pointee.name} has, which is set first: {len(tensors)}"
            raise BadParamError.at(f"{slot.where}.count", expected=expected, got=len(addresses))
        return tuple(
            ReadAddress.of(slot.where, address, tensor.data_type)
            for address, tensor in zip(addresses, tensors, strict=True)
        )

    def _known(self, name: AttributeName) -> Slot:
        """The slot of an attribute, given as a member or by its number; raises BadParamError where there is none."""
        slot = self._slots.get(name) if type(name) is AttributeName else None
        if slot is not None:
            return slot
        where = f"{self._label}.{_text(name)}"
        if is_enum_number(name) and name in self._slots:
            return replace(self._slots[name], where=where)
        owned = ", ".join(item.name for item in self._slots)
        raise BadParamError.at(where, expected=f"one of {owned}", got=_text(name))


def _inert_value(where: str, inert: InertAttribute, value: Any) -> Any:
    """The one element of an inert attribute; raises NotSupportedError where it asks for something else."""
    if inert.values and value not in inert.values:
        expected = " or ".join(getattr(known, "name", str(known)) for known in inert.values)
        raise NotSupportedError.at(where, expected=expected, got=getattr(value, "name", value))
    return value


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


def _as_list(found: object) -> list[Any]:
    if found is None:
        return []
    return list(found) if isinstance(found, tuple) else [found]


def _names(members: Sequence[AttributeType | DescriptorType]) -> str:
    return " or ".join(member.name for member in members)


def _text(value: object) -> str:
    return value.name if isinstance(value, (AttributeName, AttributeType)) else f"{value!r}"[:200]
