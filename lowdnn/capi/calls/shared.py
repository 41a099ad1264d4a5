"""Functions for calls on classic descriptors: creation, destruction, descriptors that were set, enums, outputs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from lowdnn.capi.errors import Call
from lowdnn.capi.memory import Address, checked, read_array, variable_at, write_array
from lowdnn.capi.state import State
from lowdnn.enums import DIM_MAX, CudnnEnum, DataType
from lowdnn.status import BadParamError, NotSupportedError


class Settable(Protocol):
    """A classic descriptor."""

    @property
    def is_set(self) -> bool: ...


E = TypeVar("E", bound=CudnnEnum)
D = TypeVar("D", bound=Settable)
T = TypeVar("T")


def life_of(kind: type[Settable], name: str, argument: str) -> dict[str, Call]:
    """cudnnCreate<name>Descriptor and cudnnDestroy<name>Descriptor; destroying NULL does nothing."""
    create_name, destroy_name = f"cudnnCreate{name}Descriptor", f"cudnnDestroy{name}Descriptor"
    created, destroyed = f"{create_name}.{argument}", f"{destroy_name}.{argument}"
    empty = kind()  # a value that nobody changes

    def create(state: State, descriptor: Address) -> None:
        place = variable_at(ctypes.c_uint64, checked(descriptor, created))
        place.value = state.objects.add(empty)

    def destroy(state: State, descriptor: Address) -> None:
        if descriptor:
            state.objects.remove(descriptor, kind, destroyed)

    return {create_name: create, destroy_name: destroy}


def change(state: State, address: Address, kind: type[T], where: str, new: Callable[[T], T]) -> None:
    """Puts ``new`` of the descriptor behind a pointer there; the pointer is checked first."""
    old = state.objects.get(address, kind, where)
    state.objects.replace(checked(address, where), new(old))


def was_set(state: State, address: Address, kind: type[D], where: str) -> D:
    """The descriptor; raises BadParamError where it was created and not set."""
    found = state.objects.get(address, kind, where)
    if not found.is_set:
        raise BadParamError.at(where, expected="a descriptor that was set", got="one that was only created")
    return found


def member(kind: type[E], number: int, where: str) -> E:
    """The enum's member with this number; raises BadParamError if there is none."""
    try:
        return kind(number)
    except ValueError:
        raise BadParamError.at(where, expected=f"a number of {kind.__name__}", got=number) from None


def integers(address: Address, count: int, where: str) -> tuple[int, ...]:
    """An array of C ints, of at most CUDNN_DIM_MAX; raises NotSupportedError for another count."""
    if not 0 <= count <= DIM_MAX:
        raise NotSupportedError.at(f"{where}.count", expected=f"0 to {DIM_MAX}", got=count)
    return read_array(address, "i", count, where)


def write_integers(requested: int, *outputs: tuple[Address, Sequence[int], str]) -> None:
    """Writes the first ``requested`` elements of each list; ``outputs``: (address, list, name)."""
    if requested < 0:
        raise BadParamError.at(outputs[0][2], expected="0 dimensions or more", got=requested)
    for address, values, where in outputs:
        if requested and values:
            checked(address, where)
    for address, values, where in outputs:
        write_array(address, "i", values[:requested], where)


def read_scale(address: Address, data_type: DataType, where: str) -> float:
    """alpha or beta: a double on the host for DOUBLE data, otherwise a float."""
    (value,) = read_array(address, "d" if data_type is DataType.DOUBLE else "f", 1, where)
    return float(value)
