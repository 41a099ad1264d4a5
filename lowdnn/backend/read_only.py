"""Read-only attributes: methods of a declaring dataclass whose results a descriptor's ``get_attribute`` returns.

    @read_only(AttributeName.ENGINE_BEHAVIOR_NOTE, AttributeType.BEHAVIOR_NOTE)
    def behavior_notes(self) -> tuple[BehaviorNote, ...]: ...

The settable attributes are the dataclass fields made with ``schema.attribute``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.status import BadParamError, LowdnnError

_KEY: Final = "_lowdnn_read_only"

MethodT = TypeVar("MethodT", bound=Callable[..., Any])


@dataclass(frozen=True)
class ReadOnlyAttribute:
    """method: the name of the method whose result (a tuple of elements, or text for CHAR) is the attribute's value.

    asked: where the attribute is a question about descriptors that a get is given, their type; the method answers for
    one of them, and the elements are those with the answer yes.  set_error: the error that a set raises.
    """

    name: AttributeName
    set_error: type[LowdnnError]
    type: AttributeType
    method: str
    asked: DescriptorType | None


def read_only(
    name: AttributeName,
    attribute_type: AttributeType,
    *,
    asked: DescriptorType | None = None,
    set_error: type[LowdnnError] = BadParamError,
) -> Callable[[MethodT], MethodT]:
    """Declares the decorated method as the attribute ``name``."""

    def declare(method: MethodT) -> MethodT:
        setattr(method, _KEY, (name, attribute_type, asked, set_error))
        return method

    return declare


@cache
def read_only_of(cls: type) -> Mapping[AttributeName, ReadOnlyAttribute]:
    """The read-only attributes that a declaring dataclass has."""
    found: dict[AttributeName, ReadOnlyAttribute] = {}
    for method, member in vars(cls).items():
        declared = getattr(member, _KEY, None)
        if declared is not None:
            name, attribute_type, asked, set_error = declared
            found[name] = ReadOnlyAttribute(name, set_error, attribute_type, method, asked)
    return found
