"""DLPack capsules, read and made with ctypes.

Reading never takes a capsule over: the facts are copied out while the capsule is held, and its own destructor calls the
producer's deleter, once, when it is let go.
Source: dlpack.h 1.1.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lowdnn.enums import DataType
from lowdnn.status import BadParamError, UnsupportedDataTypeError

#: Newest version of DLPack that is read and made.
VERSION = (1, 1)

#: DLDeviceType of memory that the GPU reads by its address: kDLCUDA, kDLCUDAManaged.
CUDA_DEVICE_TYPES = (2, 13)

_READ_ONLY = 1
_NAME, _VERSIONED_NAME = b"dltensor", b"dltensor_versioned"

_DATA_TYPES: dict[tuple[int, int], DataType] = {
    (0, 8): DataType.INT8,
    (0, 32): DataType.INT32,
    (0, 64): DataType.INT64,
    (1, 8): DataType.UINT8,
    (1, 32): DataType.UINT32,
    (2, 16): DataType.HALF,
    (2, 32): DataType.FLOAT,
    (2, 64): DataType.DOUBLE,
    (4, 16): DataType.BFLOAT16,
    (6, 8): DataType.BOOLEAN,
    (10, 8): DataType.FP8_E4M3,
    (12, 8): DataType.FP8_E5M2,
    (14, 8): DataType.FP8_E8M0,
}
_CODES = {data_type: code for code, data_type in _DATA_TYPES.items()}


@dataclass(frozen=True)
class CapsuleFacts:
    """What a capsule says: address (byte offset added), shape, strides in elements, device (type, ordinal)."""

    address: int
    data_type: DataType
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    device: tuple[int, int]
    is_read_only: bool


def read_capsule(capsule: object) -> CapsuleFacts:
    """The facts in an unconsumed capsule, versioned or not.

    Raises BadParamError for anything else, UnsupportedDataTypeError for a type that has no DataType.
    """
    if _is_capsule(capsule, _VERSIONED_NAME):
        managed = _ManagedVersioned.from_address(_capsule_pointer(capsule, _VERSIONED_NAME))
        if managed.major > VERSION[0]:
            raise BadParamError.at(
                "dlpack.version", expected=f"at most {VERSION[0]}.x", got=f"{managed.major}.{managed.minor}"
            )
        return _facts(managed.tensor, bool(managed.flags & _READ_ONLY))
    if _is_capsule(capsule, _NAME):
        return _facts(_Managed.from_address(_capsule_pointer(capsule, _NAME)).tensor, False)
    raise BadParamError.at("dlpack.capsule", expected="an unconsumed DLPack capsule", got=repr(capsule))


def make_capsule(
    owner: object,
    *,
    address: int,
    device: tuple[int, int],
    data_type: DataType,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    is_versioned: bool,
) -> object:
    """A capsule over memory of ``owner``, which lives until the consumer calls the deleter or drops the capsule."""
    if data_type not in _CODES:
        raise UnsupportedDataTypeError.at("dlpack.dtype", expected="a type that DLPack has", got=data_type.name)
    code, bits = _CODES[data_type]
    rank = len(shape)
    export = _Export(owner, (ctypes.c_int64 * rank)(*shape), (ctypes.c_int64 * rank)(*strides))
    tensor = _Tensor(
        data=address,
        device_type=device[0],
        device_id=device[1],
        ndim=rank,
        code=code,
        bits=bits,
        lanes=1,
        shape=ctypes.cast(export.shape, ctypes.POINTER(ctypes.c_int64)),
        strides=ctypes.cast(export.strides, ctypes.POINTER(ctypes.c_int64)),
        byte_offset=0,
    )
    context = id(export)
    if is_versioned:
        export.managed = _ManagedVersioned(*VERSION, context, _DELETE_VERSIONED, 0, tensor)
    else:
        export.managed = _Managed(tensor, context, _DELETE)
    # The struct keeps itself alive through this reference; the deleter gives it up.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(export))
    name = _VERSIONED_NAME if is_versioned else _NAME
    capsule: object = _new_capsule(ctypes.addressof(export.managed), name, _DESTROY_CAPSULE)
    return capsule


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class _Export:
    """What one capsule made here refers to."""

    def __init__(self, owner: object, shape: Any, strides: Any) -> None:
        self.owner = owner
        self.shape = shape
        self.strides = strides
        self.managed: _Managed | _ManagedVersioned | None = None


def _facts(tensor: _Tensor, is_read_only: bool) -> CapsuleFacts:
    data_type = _DATA_TYPES.get((tensor.code, tensor.bits))
    if data_type is None or tensor.lanes != 1:
        raise UnsupportedDataTypeError.at(
            "dlpack.dtype",
            expected="a type of cuDNN",
            got=f"code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes",
        )
    rank = tensor.ndim
    return CapsuleFacts(
        address=(tensor.data or 0) + tensor.byte_offset,
        data_type=data_type,
        shape=tuple(tensor.shape[:rank]),
        strides=tuple(tensor.strides[:rank]) if tensor.strides else None,
        device=(tensor.device_type, tensor.device_id),
        is_read_only=is_read_only,
    )


def _delete(structure: type[_Managed] | type[_ManagedVersioned]) -> Callable[[int], None]:
    def delete(address: int) -> None:
        managed = structure.from_address(address)
        export = ctypes.cast(managed.context, ctypes.py_object)
        ctypes.pythonapi.Py_DecRef(export)

    return delete


def _destroy_capsule(capsule: int) -> None:
    """Destructor of a capsule that nobody consumed (a consumer renames it)."""
    for name, structure in ((_NAME, _Managed), (_VERSIONED_NAME, _ManagedVersioned)):
        if _raw_is_valid(capsule, name):
            address = _raw_pointer(capsule, name)
            structure.from_address(address).deleter(address)


def _prototype(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = _prototype("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_is_capsule = _prototype("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_capsule_pointer = _prototype("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
# The same two for an object that is being destroyed: no reference to it may be taken.
_raw_is_valid = _prototype("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_raw_pointer = _prototype("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)

_DELETE = _Deleter(_delete(_Managed))
_DELETE_VERSIONED = _Deleter(_delete(_ManagedVersioned))
_DESTROY_CAPSULE = _Destructor(_destroy_capsule)
