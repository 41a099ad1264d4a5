"""Arguments of a plan that becomes a part of a larger one: where its intermediates and its workspace lie there."""

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

#: Uids where no tensor is called otherwise.
AS_THEY_ARE: Mapping[int, int] = MappingProxyType({})


#: Where tensors of a part lie, by uid: an offset into the whole workspace, or an address in a tensor of the whole.
Places = Mapping[int, int] | Mapping[int, Pointer]


def moved(argument: Argument, intermediates: Places, own_bytes: int, uids: Mapping[int, int] = AS_THEY_ARE) -> Argument:
    """``argument`` with pointers to intermediates and to the part's workspace as those of the whole.

    uids: what tensors are called in the whole, by what they are called in ``argument``, where that is not the same.
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
        place = intermediates[uid]
        if isinstance(place, int):
            return WorkspacePointer(place + pointer.offset_bytes)
        return replace(place, offset_bytes=place.offset_bytes + pointer.offset_bytes)
    return pointer if uid == pointer.uid else TensorPointer(uid, pointer.offset_bytes)
