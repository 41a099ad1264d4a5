"""Device addresses of the values that a caller gives for tensors and the workspace, with the checks they allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from lowdnn.backend.handle import Handle
from lowdnn.enums import DataType
from lowdnn.frontend.device_tensor import DeviceTensor
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.interchange import view_of
from lowdnn.runtime.workspace import Workspace, tell_refusal
from lowdnn.status import BadParamError, SizeInsufficientError, StreamMismatchError


@dataclass(frozen=True)
class Need:
    """The memory that a plan needs at an address; ``where`` names it in messages, a ``data_type`` of None takes any."""

    where: str
    size_bytes: int
    data_type: DataType | None = None
    is_output: bool = False


#: A function of value, handle, need and list that returns the value's checked address. It adds to the list what must
#: live until the launch: exports of other libraries, and host copies of by-value tensors.
AddressOf = Callable[[Any, Handle, Need, list[object]], int]


def device_getter(value: object) -> AddressOf:
    """The getter of addresses for values of this type: the cheapest one that still checks where the memory is."""
    if type(value) is int:
        return integer_address
    if isinstance(value, DeviceTensor):
        return _tensor_address
    if isinstance(value, (DeviceBuffer, Workspace)):
        return _buffer_address
    if hasattr(value, "data_ptr") and hasattr(value, "get_device"):
        return _torch_address
    return _view_address


def integer_address(address: Any, handle: Handle, need: Need, kept: list[object]) -> int:
    found: int = address
    return found


def _torch_address(tensor: Any, handle: Handle, need: Need, kept: list[object]) -> int:
    if tensor.get_device() == handle.cuda_device:
        return int(tensor.data_ptr())
    return _view_address(tensor, handle, need, kept)


def _tensor_address(tensor: DeviceTensor, handle: Handle, need: Need, kept: list[object]) -> int:
    if need.data_type is not None and tensor.stored_type is not need.data_type:
        _check_data_type(tensor.stored_type, need)
    if tensor.handle is handle and tensor.size_bytes >= need.size_bytes:
        return tensor.buffer.address
    return _buffer_address(tensor.buffer, handle, need, kept)


def _buffer_address(buffer: DeviceBuffer | Workspace, handle: Handle, need: Need, kept: list[object]) -> int:
    context = buffer.context
    if context is not handle.runtime.context and not context.is_of_device(handle.runtime.context):
        own = handle.runtime.context
        got = f"memory of {context.device_beside(own)}"
        raise StreamMismatchError.at(need.where, expected=f"memory of device {own.device} of {handle!r}", got=got)
    if buffer.size_bytes < need.size_bytes:
        _refuse_size(buffer.size_bytes, need)
    return buffer.address


def _view_address(array: object, handle: Handle, need: Need, kept: list[object]) -> int:
    view = view_of(array, handle.runtime.context, handle.stream, need.where)
    if view.data_type is not None and need.data_type is not None:
        _check_data_type(view.data_type, need)
    if view.size_bytes is not None and view.size_bytes < need.size_bytes:
        _refuse_size(view.size_bytes, need)
    if view.is_read_only and need.is_output:
        raise BadParamError.at(need.where, expected="memory that may be written", got="a read-only array")
    kept.append(view)
    return view.address


def _refuse_size(size_bytes: int, need: Need) -> NoReturn:
    if need.where.endswith("workspace"):
        tell_refusal(need.where, need.size_bytes, f"{size_bytes} bytes")
    raise SizeInsufficientError.at(need.where, expected=f"at least {need.size_bytes} bytes", got=f"{size_bytes} bytes")


def _check_data_type(given: DataType, need: Need) -> None:
    # Arrays of bytes may hold types that their producer cannot name; arrays of booleans may hold masks of bits.
    is_of_bytes = given in (DataType.INT8, DataType.UINT8)
    is_of_bits = given is DataType.BOOLEAN and need.data_type is DataType.UINT8
    if given is not need.data_type and not is_of_bytes and not is_of_bits and need.data_type is not None:
        raise BadParamError.at(
            need.where,
            expected=f"elements of {need.data_type.name}",
            got=given.name,
            hint="give the address to have its bytes taken as they are",
        )
