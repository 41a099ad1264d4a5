"""Objects behind C pointers. No pointer is used twice, so that a stale one is always detected."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from lowdnn.capi.memory import Address, checked
from lowdnn.status import BadParamError, LowdnnError

T = TypeVar("T")

#: The first pointer that is handed out; no memory is mapped at such addresses.
_FIRST = 0x10000
#: Bytes from a pointer to the next, as those of allocations would be.
_STEP = 16


class Objects:
    """Safe to use from several threads: each step on the table is one step for all of them.

    taken: the object for a pointer that is not in the table, where it is known elsewhere and ends there.
    """

    def __init__(self, taken: Callable[[int], object | None] = lambda _: None) -> None:
        self._taken = taken
        self._table: dict[int, Any] = {}
        self._addresses = count(_FIRST, _STEP)

    def add(self, value: object) -> int:
        """The pointer of a new object."""
        address = next(self._addresses)
        self._table[address] = value
        return address

    def get(self, address: Address, kind: type[T], where: str) -> T:
        """The object at ``address``; raises NullPointerError, and BadParamError where there is no such object."""
        found = self._table.get(address)  # type: ignore[arg-type]
        if found is None:
            found = self._take(checked(address, where))
        if isinstance(found, kind):
            return found
        raise _missing(checked(address, where), found, kind, where)

    def find(self, address: Address, kind: type[T]) -> T | None:
        """The object at ``address``, if there is one of this kind."""
        found = self._table.get(address)  # type: ignore[arg-type]
        return found if isinstance(found, kind) else None

    def behind(self, pointers: tuple[Address, ...]) -> tuple[Any, ...]:
        """The objects behind pointers; a pointer without an object (NULL, or a stale one) stands for itself."""
        return tuple(map(self._table.get, pointers, pointers))  # type: ignore[arg-type]

    def replace(self, address: int, value: object) -> None:
        """Replaces the object behind an existing pointer."""
        if address in self._table:
            self._table[address] = value

    def remove(self, address: Address, kind: type[T], where: str) -> T:
        """The object, whose pointer is not valid any more; raises as ``get`` does."""
        table = self._table
        found = table.get(address)  # type: ignore[arg-type]
        if not isinstance(found, kind):
            found = self.get(address, kind, where)
        if table.pop(address, None) is None:  # type: ignore[arg-type]
            raise _missing(checked(address, where), None, kind, where)
        return found

    def address_of(self, value: object) -> int:
        """The pointer of an object, 0 where there is none any more."""
        # The copy is one step, too: other threads add and remove meanwhile.
        return next((address for address, known in self._table.copy().items() if known is value), 0)

    def clear(self) -> list[Any]:
        """Ends all pointers; returns the objects."""
        table, self._table = self._table, {}
        return [*table.values()]

    def __len__(self) -> int:
        return len(self._table)

    def _take(self, address: int) -> object | None:
        """The object that was known elsewhere, at its pointer from now on."""
        taken = self._taken(address)
        if taken is not None:
            self._table[address] = taken
        return taken


def _missing(address: int, found: object, kind: type, where: str) -> LowdnnError:
    got = f"{address:#x}, where " + ("nothing is" if found is None else f"a {type(found).__name__} is")
    return BadParamError.at(
        where, expected=f"a pointer to a {kind.__name__}", got=got, hint="use what a create function returned"
    )
