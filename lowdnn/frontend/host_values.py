"""By-value tensors: host addresses of the values that a caller gives.

A CPU tensor of torch in the tensor's own data type is read where it lies, as is an integer, which is an address. Any
other number is copied into memory of that call, so that threads share none.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.backend.handle import Handle
from lowdnn.enums import DataType
from lowdnn.frontend.addresses import AddressOf, Need, integer_address
from lowdnn.frontend.data_types import as_data_type, to_backend
from lowdnn.frontend.interop import HOST_DEVICE_TYPES
from lowdnn.runtime.dlpack import read_capsule
from lowdnn.runtime.parameters import read_host_value
from lowdnn.status import AttributeTypeError, UnsupportedDataTypeError

#: Formats of storage that ``array`` can fill with a number: floats round, integers must fit.
_ARRAY_CODES = "fdilqbB"
#: Exceptions of reading a number from an object and of storing it, which mean that none fits.
_NO_NUMBER = (TypeError, ValueError, OverflowError, BufferError, AttributeError, RuntimeError)


def host_getter(value: Any, data_type: DataType) -> AddressOf:
    """The getter of host addresses for values of this type, for a by-value tensor of ``data_type``.

    The getters raise AttributeTypeError for what is no number and no host array of one element. They read nothing of
    torch's tensors but their address: the value may change in place.
    """
    if type(value) is int:
        return integer_address
    convert = _number_getter(data_type)
    return _in_place_getter(value.dtype, convert) if _is_torch_tensor_of(value, data_type) else convert


def host_scalar(value: object, data_type: DataType, where: str) -> NDArray[Any]:
    """One element of ``data_type``'s storage with the value of a number or a host array of one element.

    Arrays are NumPy's, torch's CPU tensors, and objects with DLPack, the buffer protocol or ``__array_interface__``.
    Raises AttributeTypeError for anything else.
    """
    try:
        elements = _real_numbers(np.asarray(_number(value)).reshape(-1))
    except _NO_NUMBER:
        raise AttributeTypeError.at(
            where,
            expected="a number or a host array of one element for a by-value tensor",
            got=f"{type(value).__name__} {value!r}"[:200],
        ) from None
    return dtypes.from_float64(elements, data_type)


def _in_place_getter(dtype: object, convert: AddressOf) -> AddressOf:
    """The getter for torch's CPU tensors of ``dtype``, each checked when first seen; ``convert`` takes others."""
    seen: Any = None

    def address(tensor: Any, handle: Handle, need: Need, kept: list[object]) -> int:
        nonlocal seen
        if tensor is not seen or not tensor.numel():
            if tensor.dtype is not dtype or not tensor.is_cpu or tensor.numel() != 1:
                return convert(tensor, handle, need, kept)
            seen = tensor
        found: int = tensor.data_ptr()
        return found

    return address


def _number_getter(data_type: DataType) -> AddressOf:
    """The getter for numbers and arrays of one element of any type, which copies the number."""
    facts = dtypes.info(data_type)
    code = "" if facts.is_bit_pattern or facts.storage.char not in _ARRAY_CODES else facts.storage.char

    def address(value: Any, handle: Handle, need: Need, kept: list[object]) -> int:
        if code:
            try:
                stored = array(code, (_number(value),))
            except _NO_NUMBER:
                pass
            else:
                kept.append(stored)
                return stored.buffer_info()[0]
        scalar = host_scalar(value, data_type, need.where)
        kept.append(scalar)
        return int(scalar.ctypes.data)

    return address


def _real_numbers(elements: NDArray[Any]) -> NDArray[Any]:
    """The elements in a type that NumPy computes with: ml_dtypes' types and integers of any size become float64."""
    kind = elements.dtype.kind
    if kind not in "iubfVO":
        raise TypeError("no real number")
    return elements.astype(np.float64) if kind in "VO" else elements


def _number(value: Any) -> Any:
    """The number in a Python or NumPy scalar or in a host array of one element; raises one of ``_NO_NUMBER``."""
    if isinstance(value, (float, int)):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return value.item()
    if _is_torch_tensor(value):
        if not value.is_cpu:
            raise TypeError("a tensor of a device")
        return value.item()
    if hasattr(value, "__dlpack_device__"):
        return _exported_number(value)
    return np.asarray(value if hasattr(value, "__array_interface__") else memoryview(value)).item()


def _exported_number(value: Any) -> Any:
    """The number that DLPack exports, including types that NumPy lacks."""
    if value.__dlpack_device__()[0] not in HOST_DEVICE_TYPES:
        raise TypeError("memory of a device")
    try:
        return np.from_dlpack(value).item()
    except (BufferError, RuntimeError):
        capsule = value.__dlpack__()
        facts = read_capsule(capsule)
        if any(extent != 1 for extent in facts.shape):
            raise ValueError("more than one element") from None
        return read_host_value(facts.address, facts.data_type)


def _is_torch_tensor(value: object) -> bool:
    return hasattr(value, "data_ptr") and hasattr(value, "is_cpu") and hasattr(value, "numel")


def _is_torch_tensor_of(value: Any, data_type: DataType) -> bool:
    if not _is_torch_tensor(value):
        return False
    try:
        return to_backend(as_data_type(value.dtype, "dtype"), "dtype") is data_type
    except UnsupportedDataTypeError:
        return False
