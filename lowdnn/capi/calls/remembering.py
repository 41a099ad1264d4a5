"""Repeated classic calls, which are answered from the remembered outcome of the first equal call.

A launch comes again where its numbers, alpha and beta are the same, its descriptors equal, and its addresses NULL,
aligned and equal to each other as they were: then another one launches the same plan, on its own addresses. A network
makes such calls in each of its steps, with new descriptors and addresses, and most of a call's time on the host goes
into its graph. A setting of a descriptor comes again with the same numbers and arrays, and a size is asked for again by
equal descriptors. ``Graphs.known_calls`` keeps the outcomes of all.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from lowdnn.backend.handle import Handle
from lowdnn.capi.calls.forms import Arguments, Form, Keys, Taken, taken
from lowdnn.capi.errors import Call
from lowdnn.capi.graphs import Launched
from lowdnn.capi.memory import variable_at
from lowdnn.capi.signatures import functions
from lowdnn.capi.state import State
from lowdnn.enums import DataType

_SIZES = ("Size", "SizeInBytes")
#: The arguments that say how many ints an array has.
_COUNTS = ("nbDims", "arrayLength")


def remembering(name: str, call: Call) -> Call:
    """Wraps ``call`` so that repeated calls use the remembered outcome, if it launches, returns a size or sets a
    descriptor."""
    function = functions()[name]
    form, types = Form.of(function), [argument.type.base for argument in function.arguments]
    if form.scales:
        return _remembering_launches(form, call)
    # Calls on recurrent networks are not wrapped: each of their descriptors is a new object, and they have caches of
    # their own.
    if any(base.startswith("RNN") for base in types) or form.addresses or not form.descriptors:
        return call
    if name.endswith(_SIZES) and len(form.sizes) == 1 and not form.arrays:
        return _remembering_sizes(form, call)
    if name.startswith("cudnnSet") and form.descriptors == (0,) and "Handle" not in types and not form.sizes:
        counts = [place for place, argument in enumerate(function.arguments) if argument.name in _COUNTS]
        return _remembering_settings(form, call, counts[0] if counts else None)
    return call


class _Address(int):
    """An address that carries the index of its argument."""

    place: int

    @classmethod
    def at(cls, place: int, address: int) -> _Address:
        found = cls(address)
        found.place = place
        return found


@dataclass(frozen=True)
class _Again:
    """A launch for other addresses.

    order: takes the tensors' addresses out of a call's arguments with ``held`` behind them: addresses of numbers that
    ``launched`` keeps.  workspace: the place of its argument; None for the handle's own memory, or none.
    """

    launched: Launched
    order: Taken
    held: tuple[int, ...]
    workspace: int | None
    name: str

    @classmethod
    def of(cls, form: Form, launched: Launched, arguments: Arguments) -> _Again | None:
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
        place = launched.workspace.place if isinstance(launched.workspace, _Address) else None
        return cls(launched, taken(places), tuple(held), place, form.name)

    def run(self, state: State, handle: Handle, arguments: Arguments) -> None:
        loaded = self.launched.loaded
        if self.workspace is None:
            workspace = state.graphs.workspace(handle, loaded.plan.workspace_bytes, None, self.name)
        else:
            workspace = arguments[self.workspace]
        loaded.execute(self.order(arguments + self.held), workspace, handle.stream)


def _remembering_launches(form: Form, call: Call) -> Call:
    keys = Keys(form)

    def computed(state: State, *arguments: Any) -> None:
        descriptors = keys.descriptors(state.objects, arguments)
        key = keys.of_launch(descriptors, arguments)
        known = state.graphs.known_calls.get(key)
        if known is not None:
            handle = state.objects.find(arguments[0], Handle)
            if handle is not None:
                known.outcome.run(state, handle, arguments)
                return
        launched = call(state, *_with_places(form, arguments))
        if key is not None and isinstance(launched, Launched) and not _have_doubles(descriptors):
            again = _Again.of(form, launched, arguments)
            if again is not None:
                state.graphs.known_calls.keep(key, again, descriptors)

    return computed


def _remembering_sizes(form: Form, call: Call) -> Call:
    keys, (place,) = Keys(form), form.sizes

    def told(state: State, *arguments: Any) -> None:
        size = arguments[place]
        descriptors = keys.descriptors(state.objects, arguments)
        key = None if size is None else keys.of_size(descriptors, arguments)
        known = state.graphs.known_calls.get(key)
        if known is not None:
            variable_at(ctypes.c_uint64, size).value = known.outcome
            return
        call(state, *arguments)
        if key is not None:
            state.graphs.known_calls.keep(key, variable_at(ctypes.c_uint64, size).value, descriptors)

    return told


def _remembering_settings(form: Form, call: Call, count: int | None) -> Call:
    """Settings of descriptors, whose new value follows from the old one and the arguments."""
    keys = Keys(form)

    def changed(state: State, *arguments: Any) -> None:
        objects, descriptor = state.objects, arguments[0]
        old = objects.find(descriptor, object)
        key = keys.of_setting(old, arguments, 0 if count is None else arguments[count])
        known = state.graphs.known_calls.get(key)
        if known is not None:
            objects.replace(descriptor, known.outcome)
            return
        call(state, *arguments)
        new = objects.find(descriptor, object)
        if key is not None and new is not None:
            state.graphs.known_calls.keep(key, new, old)

    return changed


def _with_places(form: Form, arguments: Arguments) -> Arguments:
    """The arguments, with each address that is not NULL as an ``_Address``."""
    known = list(arguments)
    for place in form.addresses:
        if known[place]:
            known[place] = _Address.at(place, known[place])
    return tuple(known)


def _have_doubles(descriptors: Arguments) -> bool:
    """Whether alpha and beta may be doubles, of which the key would hold only 32 bits."""
    types = (getattr(found, name, None) for found in descriptors for name in ("data_type", "compute_type"))
    return DataType.DOUBLE in types
