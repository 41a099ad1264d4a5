"""Faults of one argument of a call, and the status that each gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.status import Status
from tests.support.random_calls.operands import AddressOf, Call, Count, DescriptorOf, Enum, Made, Scale

_BAD = (Status.BAD_PARAM,)


@dataclass(frozen=True)
class Spoil:
    """index: the argument's position; -1 for a handle that is NULL, -2 for one that is none.

    value: the value that is passed instead.  axis, more: growth of an operand's extent along an axis; its stride
    becomes 0 where the growth is 0.
    """

    what: str
    index: int
    categories: tuple[Status, ...] = _BAD
    value: int | str | None = None
    axis: int | None = None
    more: int = 0

    def __str__(self) -> str:
        return f"{self.what} (argument {self.index}, axis {self.axis})"


def spoils_of(call: Call) -> list[Spoil]:
    """Everything that can be wrong with one argument of the call."""
    return [*_spoils(call)]


def _spoils(call: Call) -> Iterator[Spoil]:
    if call.has_handle:
        yield Spoil("no handle", -1)
        yield Spoil("a stale handle", -2)
    for index, argument in enumerate(call.arguments):
        match argument:
            case DescriptorOf():
                yield from _of_descriptor(index)
                yield from _of_dims(call, index)
            case Made(kind):
                # A new descriptor of LRN holds cuDNN's values.
                yield from (found for found in _of_descriptor(index) if (kind, found.value) != ("LRN", "unset"))
            case AddressOf(operand, is_optional=False):
                yield Spoil(f"{operand.port} is NULL", index, value=0)
                if dtypes.info(operand.placed[0]).size_bytes > 1:
                    yield Spoil(f"{operand.port} is not aligned", index)
            case Scale():
                yield Spoil("a scale is NULL", index)
            case Enum():
                yield Spoil("no member", index, value=77)
            case Count():
                yield from (Spoil("fewer than 1", index, value=number) for number in (0, -1))


def _of_descriptor(index: int) -> Iterator[Spoil]:
    yield Spoil("descriptor is NULL", index, value=0)
    for what in ("unset", "destroyed", "another kind"):
        yield Spoil(f"descriptor is {what}", index, value=what)


def _of_dims(call: Call, index: int) -> Iterator[Spoil]:
    """Extents are wrong for certain where another operand has them too, and one of the two is a result."""
    operand = call.arguments[index].operand
    others = [a.operand for a in call.arguments if isinstance(a, DescriptorOf) and a.operand is not operand]
    for axis, extent in enumerate(operand.dims):
        is_result = operand.port in call.expected
        if extent > 1 and is_result and not operand.is_filter:
            yield Spoil(f"{operand.port} overlaps", index, (*_BAD, Status.NOT_SUPPORTED), axis=axis)
        same = [o for o in others if len(o.dims) == len(operand.dims) and o.dims[axis] == extent]
        if extent > 1 and any(is_result or other.port in call.expected for other in same):
            yield Spoil(f"{operand.port} has other extents", index, axis=axis, more=64)
