"""Objects of the program that graphs keep alive, with a count of the program's own references."""

from __future__ import annotations

import ctypes
import threading
import weakref
from itertools import count
from typing import Final

from lowdnn.status import BadParamError

#: The first number of an object, and the step to the next; no memory is mapped at these addresses.
_FIRST: Final = 0x8000
_STEP: Final = 16


class UserObject:
    """An object of the program. When its last reference is released, the C function ``destroy`` is called with
    ``pointer``, except at the end of the interpreter.
    """

    def __init__(self, pointer: int, destroy: int) -> None:
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(destroy)
        weakref.finalize(self, function, pointer).atexit = False


class UserObjects:
    """Objects by number, with the references that the program has; graphs refer to the objects themselves."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[UserObject, int]] = {}
        self._numbers = count(_FIRST, _STEP)
        self._lock = threading.Lock()

    def add(self, value: UserObject, references: int) -> int:
        number = next(self._numbers)
        self._held[number] = value, references
        return number

    def get(self, number: int, where: str) -> UserObject:
        """Raises BadParamError for an object that the program has no reference to."""
        found = self._held.get(number)
        if found is None:
            raise BadParamError.at(where, expected="an object with a reference", got=f"{number:#x}")
        return found[0]

    def change(self, number: int, references: int, where: str) -> None:
        """Adds to the references, or takes them away; raises as ``get`` does, also for more than there are."""
        with self._lock:
            value, held = self.get(number, where), self._held[number][1]
            if held + references < 0:
                raise BadParamError.at(where, expected=f"at most {held} references to give back", got=-references)
            if held + references:
                self._held[number] = value, held + references
            else:
                del self._held[number]
