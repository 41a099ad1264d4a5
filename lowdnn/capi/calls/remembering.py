"""Classic calls that come again: launched without building, finding and checking their graph once more.

A call comes again where its numbers, alpha and beta are the same, its descriptors equal, and its addresses NULL,
aligned and equal to each other as they were: then another one launches the same plan, on its own addresses. A network
makes such calls in each of its steps, with new descriptors and addresses, and most of a call's time on the host goes
into its graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from lowdnn.backend.handle import Handle
from lowdnn.capi.errors import Call
from lowdnn.capi.graphs import MAX_ALIGNMENT, Launched
from lowdnn.capi.memory import Address, write_array
from lowdnn.capi.prototypes import is_opaque
from lowdnn.capi.signatures import Function, functions
from lowdnn.capi.state import State
from lowdnn.enums import DataType

#: How the arguments begin through which a call is given numbers on the host.
_SCALES = ("alpha", "beta")
_SIZES = "WorkspaceSize"

Arguments = tuple[Any, ...]


class _Address(int):
    """An address that knows the place of its argument."""

    place: int

    @classmethod
    def at(cls, place: int, address: int) -> _Address:
        found = cls(address)
        found.place = place
        return found


@dataclass(frozen=True)
class _Form:
    """The places of a function's arguments by kind. The handle is the first argument.

    scales: addresses of floats on the host.  addresses: all others.  numbers: what is compared as it is.
    """

    name: str
    descriptors: tuple[int, ...]
    scales: tuple[int, ...]
    addresses: tuple[int, ...]
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, function: Function) -> _Form:
        kinds: dict[str, list[int]] = {"descriptors": [], "scales": [], "addresses": [], "numbers": []}
        for place, argument in enumerate(function.arguments):
            is_descriptor = argument.type.pointers == 0 and is_opaque(argument.type.base) and place > 0
            is_scale = argument.type.pointers > 0 and argument.name.startswith(_SCALES)
            kind = "descriptors" if is_descriptor else "scales" if is_scale else "addresses"
            kinds[kind if argument.type.pointers or is_descriptor else "numbers"].append(place)
        return cls(function.name, **{kind: tuple(places) for kind, places in kinds.items()})

    def key(self, state: State, arguments: Arguments) -> Arguments | None:
        """The key that two calls share if one plan serves both; None for a call that has no alpha or beta to read."""
        find = state.objects.find
        addresses = [arguments[place] or 0 for place in self.addresses]
        given = [address for address in addresses if address]
        key: list[Any] = [self.name]
        key += [arguments[place] for place in self.numbers]
        key += [find(arguments[place], object) for place in self.descriptors]
        key += [address and _alignment(address) for address in addresses]
        if len({*given}) < len(given):
            key.append(tuple(map(addresses.index, addresses)))
        for place in self.scales:
            if not arguments[place]:
                return None
            key.append(ctypes.c_float.from_address(arguments[place]).value)
        return tuple(key)

    def with_places(self, arguments: Arguments) -> Arguments:
        """The arguments, whose addresses know their places."""
        known = list(arguments)
        for place in self.addresses:
            if known[place]:
                known[place] = _Address.at(place, known[place])
        return tuple(known)


@dataclass(frozen=True)
class _Again:
    """A launch for other addresses.

    order: takes the tensors' addresses out of a call's arguments with ``held`` behind them: addresses of numbers that
    ``launched`` keeps.  workspace: the place of its argument; None for the handle's own memory, or none.
    """

    launched: Launched
    order: Callable[[Arguments], tuple[int, ...]]
    held: tuple[int, ...]
    workspace: int | None
    name: str

    @classmethod
    def of(cls, form: _Form, launched: Launched, arguments: Arguments) -> _Again | None:
        """A launch for other addresses; None where its own are neither arguments nor of numbers that it keeps."""
        held: list[int] = []
        places: list[int] = []
        for pointer in launched.pointers:
            if isinstance(pointer, _Address):
                places.append(pointer.place)
            elif launched.builder.holds(pointer):
                places.append(len(arguments) + len(held))
                held.append(pointer)
            else:
                return None
        order = itemgetter(*places) if len(places) > 1 else lambda values: (values[places[0]],)
        place = launched.workspace.place if isinstance(launched.workspace, _Address) else None
        return cls(launched, order, tuple(held), place, form.name)

    def run(self, state: State, handle: Handle, arguments: Arguments) -> None:
        loaded = self.launched.loaded
        if self.workspace is None:
            workspace = state.graphs.workspace(handle, loaded.plan.workspace_bytes, None, self.name)
        else:
            workspace = arguments[self.workspace]
        loaded.execute(self.order(arguments + self.held), workspace, handle.stream)


def remembering(name: str, call: Call) -> Call:
    """``call``, which does not work out again what it has, where it has alpha and beta or tells a workspace's size."""
    form = _Form.of(functions()[name])
    if form.scales:
        return _remembering_launches(form, call)
    is_size = name.endswith(_SIZES) and form.descriptors and len(form.addresses) == 1
    return _remembering_sizes(form, call) if is_size else call


def _remembering_launches(form: _Form, call: Call) -> Call:
    def computed(state: State, *arguments: Any) -> None:
        key = form.key(state, arguments)
        known = state.graphs.known_calls
        again = known.get(key)
        handle = state.objects.find(arguments[0], Handle)
        if again is not None and handle is not None:
            again.run(state, handle, arguments)
            return
        launched = call(state, *form.with_places(arguments))
        if key is not None and isinstance(launched, Launched) and not _has_doubles(key):
            known.keep(key, _Again.of(form, launched, arguments))

    return computed


def _remembering_sizes(form: _Form, call: Call) -> Call:
    (place,) = form.addresses

    def told(state: State, *arguments: Any) -> None:
        key = form.key(state, arguments)
        size = state.graphs.known_calls.get(key)
        if size is None or not arguments[place]:
            call(state, *arguments)
            state.graphs.known_calls.keep(key, _size_at(arguments[place]))
        else:
            write_array(arguments[place], "Q", (size,), f"{form.name}.sizeInBytes")

    return told


def _alignment(address: int) -> int:
    """The power of two that an address is a multiple of, up to the largest that matters."""
    capped = address | MAX_ALIGNMENT
    return capped & -capped


def _has_doubles(key: Arguments) -> bool:
    """Whether alpha and beta may be doubles, of which the key has half."""
    types = (getattr(value, name, None) for value in key for name in ("data_type", "compute_type"))
    return DataType.DOUBLE in types


def _size_at(address: Address) -> int:
    return ctypes.c_uint64.from_address(address or 0).value
