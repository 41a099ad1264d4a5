"""DLPack capsules, read and made with ctypes.

Reading never takes a capsule over: the facts are copied out while the capsule is held, and its own destructor calls the
producer's deleter, once, when it is let go.
Source: dlpack.h 1.1.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowdnn.enums import DataType
from lowdnn.status import BadParamError, UnsupportedDataTypeError

#: Newest version of DLPack that is read and made.
VERSION = (1, 1)

#: DLDeviceType of memory that the GPU reads by its address: kDLCUDA, kDLCUDAManaged.
CUDA_DEVICE_TYPES = (2, 13)

_READ_ONLY = 1
#: The most dimensions of a tensor; a larger count comes from damaged memory.
_MAX_RANK = 64
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
    """The facts of a capsule: address (byte offset added), shape, strides in elements, device (type, ordinal)."""

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
    managed = _managed_of(capsule)
    if isinstance(managed, _Managed):
        return _facts(managed.tensor, False)
    if managed.major > VERSION[0]:
        raise BadParamError.at(
            "dlpack.version", expected=f"at most {VERSION[0]}.x", got=f"{managed.major}.{managed.minor}"
        )
    return _facts(managed.tensor, bool(managed.flags & _READ_ONLY))


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
    """A capsule over memory of ``owner``, which lives until the consumer calls the deleter or drops the capsule.

    NumPy makes the capsule from a view with this shape and these strides; address, type and device are set here. Its
    destructor and its deleter are compiled: they run while an exception is on its way, in a thread
    without the interpreter's lock, and at exit.
    """
    if data_type not in _CODES:
        raise UnsupportedDataTypeError.at("dlpack.dtype", expected="a type that DLPack has", got=data_type.name)
    view = np.asarray(_Bytes(owner, address, shape, strides))
    capsule: object = view.__dlpack__(max_version=VERSION if is_versioned else None)
    tensor = _managed_of(capsule).tensor
    tensor.data = address
    tensor.device_type, tensor.device_id = device
    tensor.code, tensor.bits = _CODES[data_type]
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


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class _Bytes:
    """An array interface over memory of ``owner``; its elements have one byte, so that strides count elements."""

    def __init__(self, owner: object, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": shape,
            "strides": strides,
            "data": (address, False),
        }


def _managed_of(capsule: object) -> _Managed | _ManagedVersioned:
    for name, structure in ((_VERSIONED_NAME, _ManagedVersioned), (_NAME, _Managed)):
        if _is_capsule(capsule, name):
            return structure.from_address(_capsule_pointer(capsule, name))
    raise BadParamError.at("dlpack.capsule", expected="an unconsumed DLPack capsule", got=repr(capsule))


def _facts(tensor: _Tensor, is_read_only: bool) -> CapsuleFacts:
    data_type = _DATA_TYPES.get((tensor.code, tensor.bits))
    if data_type is None or tensor.lanes != 1:
        raise UnsupportedDataTypeError.at(
            "dlpack.dtype",
            expected="a type of cuDNN",
            got=f"code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes",
        )
    rank = tensor.ndim
    if not 0 <= rank <= _MAX_RANK or (rank and not tensor.shape):
        extents = "extents" if tensor.shape else "extents at address 0"
        raise BadParamError.at("dlpack.shape", expected=f"0 to {_MAX_RANK} extents", got=f"{rank} {extents}")
    return CapsuleFacts(
        address=(tensor.data or 0) + tensor.byte_offset,
        data_type=data_type,
        shape=tuple(tensor.shape[:rank]),
        strides=tuple(tensor.strides[:rank]) if tensor.strides else None,
        device=(tensor.device_type, tensor.device_id),
        is_read_only=is_read_only,
    )


def _prototype(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_is_capsule = _prototype("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_capsule_pointer = _prototype("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
