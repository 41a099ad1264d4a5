"""Objects of the program that live as long as graphs that refer to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lowdnn.capi.cudart.referenced import UserObject
from lowdnn.capi.cudart.state import RuntimeState
from lowdnn.capi.errors import Call
from lowdnn.capi.memory import Address, checked, write_pointer
from lowdnn.status import BadParamError

#: cudaUserObjectNoDestructorSync, which is asked for; and cudaGraphUserObjectMove: the graph takes the references over.
_NO_SYNC: Final = 1
_MOVE: Final = 1


def create(
    state: RuntimeState, result: Address, pointer: Address, destroy: Address, references: int, flags: int
) -> None:
    where = "cudaUserObjectCreate"
    checked(result, f"{where}.object_out")
    if flags != _NO_SYNC or references < 1:
        got = f"{references} references, flags {flags}"
        raise BadParamError.at(where, expected=f"a reference or more and flags {_NO_SYNC}", got=got)
    made = UserObject(pointer or 0, checked(destroy, f"{where}.destroy"))
    write_pointer(result, state.user_objects.add(made, references), where)


def retain(state: RuntimeState, value: Address, references: int) -> None:
    state.user_objects.change(value or 0, references, "cudaUserObjectRetain.object")


def release(state: RuntimeState, value: Address, references: int) -> None:
    state.user_objects.change(value or 0, -references, "cudaUserObjectRelease.object")


def retain_by_graph(state: RuntimeState, graph: Address, value: Address, references: int, flags: int) -> None:
    """Adds references of a graph. Several references of one graph count as one, since the graph releases them
    together."""
    where = "cudaGraphRetainUserObject"
    found = state.user_objects.get(value or 0, f"{where}.object")
    if references < 1 or flags not in (0, _MOVE):
        got = f"{references}, flags {flags}"
        raise BadParamError.at(f"{where}.count", expected="1 or more, and flags 0 or 1", got=got)
    state.entered().graph_calls.retain(graph or 0, found)
    if flags == _MOVE:
        state.user_objects.change(value or 0, -references, f"{where}.object")


CALLS: Mapping[str, Call] = {
    "cudaUserObjectCreate": create,
    "cudaUserObjectRetain": retain,
    "cudaUserObjectRelease": release,
    "cudaGraphRetainUserObject": retain_by_graph,
}
