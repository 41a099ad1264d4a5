"""Descriptions of arrays of other libraries: shape, strides, type, and whether the array lies on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lowdnn.enums import DataType
from lowdnn.frontend.data_types import as_data_type, to_backend
from lowdnn.runtime.buffer import c_strides
from lowdnn.runtime.dlpack import read_capsule
from lowdnn.status import AttributeTypeError

#: DLPack's device types of host memory: kDLCPU, kDLCUDAHost.
HOST_DEVICE_TYPES = (1, 3)


@dataclass(frozen=True)
class ArrayFacts:
    """Shape and type of an array; strides in elements. A scalar has one dimension of extent 1."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    data_type: DataType
    is_host: bool


def is_array(value: object) -> bool:
    """Whether ``value`` is what ``describe`` takes; NumPy's numbers are none."""
    return not isinstance(value, np.generic) and (
        hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")
    )


def describe(array: object) -> ArrayFacts:
    """The facts of a NumPy array, or of anything with DLPack or ``__cuda_array_interface__``; its data is not read.

    Raises AttributeTypeError for anything else, UnsupportedDataTypeError for a type that no operation takes.
    """
    if isinstance(array, (np.ndarray, np.generic)):
        element_strides = tuple(stride // array.itemsize for stride in array.strides)
        return _facts(array.shape, element_strides, _data_type_of(array.dtype), is_host=True)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _describe_dlpack(array)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise AttributeTypeError.at(
            "tensor_like.template",
            expected="a tensor, or an array with DLPack or __cuda_array_interface__",
            got=repr(array),
        )
    data_type = np.dtype(interface["typestr"])
    byte_strides = interface.get("strides")
    strides = None if byte_strides is None else tuple(stride // data_type.itemsize for stride in byte_strides)
    return _facts(tuple(interface["shape"]), strides, _data_type_of(data_type), is_host=False)


def _describe_dlpack(array: Any) -> ArrayFacts:
    if getattr(array, "requires_grad", False):  # PyTorch exports none of these
        array = array.detach()
    is_host = array.__dlpack_device__()[0] in HOST_DEVICE_TYPES
    # -1 asks for no synchronisation: only the shape is read.
    capsule = array.__dlpack__() if is_host else array.__dlpack__(stream=-1)
    facts = read_capsule(capsule)
    return _facts(facts.shape, facts.strides, facts.data_type, is_host)


def _facts(shape: tuple[int, ...], strides: tuple[int, ...] | None, data_type: DataType, is_host: bool) -> ArrayFacts:
    if not shape:
        return ArrayFacts((1,), (1,), data_type, is_host)
    return ArrayFacts(shape, c_strides(shape) if strides is None else strides, data_type, is_host)


def _data_type_of(dtype: np.dtype[Any]) -> DataType:
    where = "array.dtype"
    return to_backend(as_data_type(dtype, where), where)
