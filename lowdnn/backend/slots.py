"""Slots: the rules for setting and getting each attribute, computed once for each descriptor type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from lowdnn.backend.inert import InertAttribute, inert_of
from lowdnn.backend.read_only import ReadOnlyAttribute, read_only_of
from lowdnn.backend.uncomputed import uncomputed_attributes
from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.schema import Attribute, attributes_of
from lowdnn.status import BadParamError, LowdnnError


@dataclass(frozen=True)
class Slot:
    """One attribute.

    where: its name in errors.
    types, descriptors, max_count, pointee: the rules of a set, see ``schema.Attribute``; a read-only attribute has no
    types, and ``descriptors`` are those that it is a question about.
    least_count: the fewest elements of a set.  inert: the rules of a set without effect.
    read_types: the types of a get.  declared: the declaration of an attribute that is settable and has an effect.
    computed: how a get finds a value that was not set.  set_error: the error of a set of a read-only attribute.
    """

    name: AttributeName
    where: str
    types: tuple[AttributeType, ...] = ()
    descriptors: tuple[DescriptorType, ...] = ()
    least_count: int = 1
    max_count: int = 1
    pointee: AttributeName | None = None
    inert: InertAttribute | None = None
    read_types: tuple[AttributeType, ...] = ()
    declared: Attribute | None = None
    computed: ReadOnlyAttribute | None = None
    set_error: type[LowdnnError] = BadParamError


@cache
def slots_of(declaration: type) -> Mapping[AttributeName, Slot]:
    """The slots of the descriptor that a dataclass declares."""
    kind: DescriptorType = declaration.descriptor_type  # type: ignore[attr-defined]
    label = f"{kind.name} descriptor"
    declared = {**attributes_of(declaration), **uncomputed_attributes(kind)}
    slots = {name: _settable(name, f"{label}.{name.name}", item) for name, item in declared.items()}
    for name, inert in inert_of(kind).items():
        slots[name] = Slot(name, f"{label}.{name.name}", (inert.type,), inert=inert, read_types=(inert.type,))
    for name, computed in read_only_of(declaration).items():
        asked = () if computed.asked is None else (computed.asked,)
        slot = slots.get(name, Slot(name, f"{label}.{name.name}", descriptors=asked, set_error=computed.set_error))
        slots[name] = replace(slot, read_types=(computed.type,), computed=computed)
    return slots


@cache
def required_of(declaration: type) -> frozenset[AttributeName]:
    """The attributes that a finalize needs."""
    return frozenset(name for name, item in attributes_of(declaration).items() if item.required)


def _settable(name: AttributeName, where: str, declared: Attribute) -> Slot:
    # An optional array may be set to nothing, which is what it is when it is not set.
    least_count = 0 if declared.max_count > 1 and not declared.required else 1
    return Slot(
        name,
        where,
        declared.types,
        declared.descriptors,
        least_count,
        declared.max_count,
        declared.pointee,
        read_types=declared.types,
        declared=declared,
    )
