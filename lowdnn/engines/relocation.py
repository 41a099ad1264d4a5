"""The arguments of a plan that becomes a part of a larger one, in which its tensors and its workspace lie elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from lowdnn.plan import (
    Argument,
    Pointer,
    Scalar,
    Struct,
    TensorMap,
    TensorPointer,
    TensorValue,
    ValueCase,
    WorkspacePointer,
)

#: A mapping of uids that changes none.
AS_THEY_ARE: Mapping[int, int] = MappingProxyType({})


#: The locations of a part's tensors by uid: offsets in the whole workspace, or addresses in tensors of the whole.
Places = Mapping[int, int] | Mapping[int, Pointer]


def moved(argument: Argument, intermediates: Places, own_bytes: int, uids: Mapping[int, int] = AS_THEY_ARE) -> Argument:
    """``argument`` with its pointers to intermediates and to the part's workspace relocated to the whole.

    uids: the uids of tensors in the whole, by their uids in ``argument``, where these differ.
    """
    if isinstance(argument, Struct):
        fields = [f if isinstance(f, Scalar) else moved(f, intermediates, own_bytes, uids) for f in argument.fields]
        return Struct(tuple(fields))
    if isinstance(argument, TensorMap):
        return replace(argument, target=_moved_pointer(argument.target, intermediates, own_bytes, uids))
    if isinstance(argument, TensorPointer | WorkspacePointer):
        return _moved_pointer(argument, intermediates, own_bytes, uids)
    if isinstance(argument, TensorValue | ValueCase) and argument.uid in uids:
        return replace(argument, uid=uids[argument.uid])
    return argument


def _moved_pointer(pointer: Pointer, intermediates: Places, own_bytes: int, uids: Mapping[int, int]) -> Pointer:
    if isinstance(pointer, WorkspacePointer):
        return WorkspacePointer(own_bytes + pointer.offset_bytes)
    uid = uids.get(pointer.uid, pointer.uid)
    if uid in intermediates:
        location = intermediates[uid]
        if isinstance(location, int):
            return WorkspacePointer(location + pointer.offset_bytes)
        return replace(location, offset_bytes=location.offset_bytes + pointer.offset_bytes)
    return pointer if uid == pointer.uid else TensorPointer(uid, pointer.offset_bytes)
