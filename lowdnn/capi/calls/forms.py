"""The arguments of a C function by kind, and the keys that tell whether a call comes again."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

from lowdnn.capi.graphs import MAX_ALIGNMENT
from lowdnn.capi.memory import variable_at
from lowdnn.capi.objects import Objects
from lowdnn.capi.prototypes import is_opaque
from lowdnn.capi.signatures import Argument, Function
from lowdnn.enums import DIM_MAX

Arguments = tuple[Any, ...]
#: A function that selects the arguments of one kind.
Taken = Callable[[Arguments], Arguments]

#: Prefixes of the names of arguments that point to numbers on the host.
_SCALES = ("alpha", "beta")


@dataclass(frozen=True)
class Form:
    """The places of a function's arguments by kind.

    numbers: values that are compared as they are, a handle too, since its pointer is never used again.  descriptors:
    pointers to everything else that callers do not look into.  scales: addresses of floats on the host.  arrays:
    addresses of ints that the call reads.  sizes: addresses that it writes a size to.  addresses: all others.
    """

    name: str
    numbers: tuple[int, ...]
    descriptors: tuple[int, ...]
    scales: tuple[int, ...]
    arrays: tuple[int, ...]
    sizes: tuple[int, ...]
    addresses: tuple[int, ...]

    @classmethod
    def of(cls, function: Function) -> Form:
        kinds: dict[str, list[int]] = {kind: [] for kind in cls.__dataclass_fields__ if kind != "name"}
        for place, argument in enumerate(function.arguments):
            kinds[_kind_of(argument)].append(place)
        return cls(function.name, **{kind: tuple(places) for kind, places in kinds.items()})


class Keys:
    """The keys of a function's calls: calls with one key do the same, each with its own addresses.

    A descriptor counts by its identity, which costs less than its fields do: whoever keeps a key keeps the descriptors,
    too. Descriptors with equal fields are mostly one object, since settings are remembered.
    """

    def __init__(self, form: Form) -> None:
        self._name = form.name
        self._numbers, self._descriptors = taken(form.numbers), taken(form.descriptors)
        self._scales, self._addresses, self._arrays = taken(form.scales), taken(form.addresses), taken(form.arrays)

    def descriptors(self, objects: Objects, arguments: Arguments) -> Arguments:
        """The objects behind a call's descriptors; a pointer that leads to nothing stands for itself."""
        return objects.behind(self._descriptors(arguments))

    def of_size(self, descriptors: Arguments, arguments: Arguments) -> Arguments:
        """The key of a call whose outcome follows from its numbers and descriptors."""
        return self._name, self._numbers(arguments), *map(id, descriptors)

    def of_launch(self, descriptors: Arguments, arguments: Arguments) -> Arguments | None:
        """The key of a call that launches a plan; None where alpha or beta is not there to be read."""
        scales = self._scales(arguments)
        if None in scales:
            return None
        key: list[Any] = [self._name, self._numbers(arguments), _pattern(self._addresses(arguments))]
        # Loops: for so few elements they take less time than comprehensions.
        for address in scales:
            key.append(variable_at(ctypes.c_uint32, address).value)  # its bits
        for descriptor in descriptors:
            key.append(id(descriptor))
        return tuple(key)

    def of_setting(self, old: object, arguments: Arguments, count: int) -> Arguments | None:
        """The key of a call that sets a descriptor, with ``count`` ints in each array; None where it cannot be read."""
        arrays = self._arrays(arguments)
        if arrays and (None in arrays or not 0 < count <= DIM_MAX):
            return None
        key, kind = [self._name, id(old), self._numbers(arguments)], _ints(count)
        for address in arrays:
            key.append(variable_at(kind, address).raw)
        return tuple(key)


def taken(places: Sequence[int]) -> Taken:
    """Takes the arguments at ``places``, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    if places:
        return itemgetter(slice(places[0], places[0] + 1))
    return lambda _: ()


def _kind_of(argument: Argument) -> str:
    kind = argument.type
    if not kind.pointers:
        return "descriptors" if is_opaque(kind.base) and kind.base != "Handle" else "numbers"
    if argument.name.startswith(_SCALES):
        return "scales"
    if kind.base == "size":
        return "sizes"
    return "arrays" if kind.base == "int" and kind.is_const else "addresses"


@lru_cache(maxsize=4096)
def _pattern(addresses: tuple[int | None, ...]) -> Arguments:
    """The facts of addresses that plans depend on: which are NULL, how the others are aligned, and which are equal.

    A network's steps find most of their tensors where they were.
    """
    given = [address for address in addresses if address]
    return tuple(map(bool, addresses)), tuple(map(_alignment, given)), tuple(map(given.index, given))


def _alignment(address: int) -> int:
    """The power of two that an address is a multiple of, up to the largest that matters."""
    capped = address | MAX_ALIGNMENT
    return capped & -capped


@lru_cache(maxsize=DIM_MAX)
def _ints(count: int) -> type[ctypes.Array[ctypes.c_char]]:
    """A ctypes array of the bytes of ``count`` C ints."""
    return ctypes.c_char * (count * ctypes.sizeof(ctypes.c_int))
