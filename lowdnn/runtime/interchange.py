"""Tensors of other libraries: their address, shape and strides, data type and device.

Accepted: ``DeviceBuffer``, DLPack (``__dlpack__``), ``__cuda_array_interface__`` version 2 and 3, and integers. Work is
ordered after the producer's: DLPack producers are told our stream, and the stream of an array interface is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowdnn import dtypes
from lowdnn.driver.base import EventFlags
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer, c_strides
from lowdnn.runtime.context import Context
from lowdnn.runtime.dlpack import CUDA_DEVICE_TYPES, VERSION, CapsuleFacts, read_capsule
from lowdnn.status import AttributeTypeError, BadParamError, LowdnnError, StreamMismatchError, UnsupportedDataTypeError

#: DLPack's numbers for the legacy and the per-thread default stream are the driver's own handles; 0 is forbidden.
_LEGACY_STREAM = 1

#: DLPack's number of host memory.
_HOST_MEMORY = 1
#: Names of DLPack's device types for messages; others are named by number alone.
_MEMORY = {
    _HOST_MEMORY: "the host",
    2: "a GPU",
    3: "the host (pinned)",
    12: "the emulated device",
    13: "a GPU (managed)",
}

_ARRAY_INTERFACE_TYPES = {
    dtypes.info(data_type).storage.str: data_type
    for data_type in dtypes.supported()
    if not dtypes.info(data_type).is_bit_pattern
}


@dataclass(frozen=True)
class TensorView:
    """Memory and what is known of it; None is unknown. ``strides`` are in elements.

    ``owner`` keeps the memory alive: hold the view until the work that uses it is in the stream.
    """

    address: int
    data_type: DataType | None = None
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    is_read_only: bool = False
    owner: object = None

    @property
    def size_bytes(self) -> int | None:
        """Bytes from the address to the end of the last element."""
        if self.data_type is None or self.shape is None:
            return None
        if 0 in self.shape:
            return 0
        steps = c_strides(self.shape) if self.strides is None else self.strides
        last = sum((extent - 1) * stride for extent, stride in zip(self.shape, steps, strict=True))
        return (last + 1) * dtypes.info(self.data_type).size_bytes


def view_of(value: object, context: Context, stream: int = 0, where: str = "tensor") -> TensorView:
    """The memory of ``value``, ready to be used in ``stream`` of ``context``; ``where`` names it in messages.

    Raises StreamMismatchError for memory of another device, AttributeTypeError for a value that is no tensor,
    BadParamError for a malformed description.
    """
    if isinstance(value, bool):
        raise _no_tensor(value, where)
    if isinstance(value, int | np.integer):
        return TensorView(int(value))
    if isinstance(value, DeviceBuffer):
        return _view_of_buffer(value, context)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _view_of_dlpack(value, context, stream, where)
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _view_of_array_interface(value, interface, context, stream)
    raise _no_tensor(value, where)


def _view_of_buffer(value: DeviceBuffer, context: Context) -> TensorView:
    if not value.context.is_of_device(context):
        raise StreamMismatchError.at(
            "DeviceBuffer.context",
            expected=f"device {context.device}",
            got=value.context.device_beside(context),
            hint="copy it to the device of the handle",
        )
    return TensorView(value.address, value.data_type, value.shape, value.strides, False, value)


def _view_of_dlpack(value: Any, context: Context, stream: int, where: str) -> TensorView:
    device_type, device = value.__dlpack_device__()
    _check_device(f"{where}.__dlpack_device__", device_type, device, context)
    capsule = _capsule_of(value, stream or _LEGACY_STREAM)
    facts = read_capsule(capsule)
    _check_device(f"{where}.__dlpack__ device", *facts.device, context)
    return _view_of_facts(facts, owner=(capsule, value))


def _view_of_facts(facts: CapsuleFacts, owner: object) -> TensorView:
    return TensorView(facts.address, facts.data_type, facts.shape, facts.strides, facts.is_read_only, owner)


def _capsule_of(value: Any, stream: int) -> object:
    try:
        try:
            return value.__dlpack__(stream=stream, max_version=VERSION)
        except TypeError:
            # Producers older than DLPack 1.0 know no max_version.
            return value.__dlpack__(stream=stream)
    except BufferError as error:
        raise BadParamError.at(
            "__dlpack__", expected="a tensor that can be exported", got=error, hint="detach() one that requires grad"
        ) from error


def _check_device(where: str, device_type: int, device: int, context: Context) -> None:
    own_type = context.driver.dlpack_device_type
    fitting = CUDA_DEVICE_TYPES if own_type in CUDA_DEVICE_TYPES else (own_type,)
    if device_type not in fitting or device != context.device:
        raise StreamMismatchError.at(
            where,
            expected=f"memory of {_memory(own_type)}, DLPack device type {own_type}, ordinal {context.device}",
            got=f"{_memory(device_type)}, type {device_type}, ordinal {device}",
            hint="copy a host array to the device with lowdnn.from_numpy" if device_type == _HOST_MEMORY else "",
        )


def _memory(device_type: int) -> str:
    return _MEMORY.get(device_type, "another kind of device")


def _view_of_array_interface(value: object, interface: object, context: Context, stream: int) -> TensorView:
    where = "__cuda_array_interface__"
    if context.driver.dlpack_device_type not in CUDA_DEVICE_TYPES:
        raise StreamMismatchError.at(where, expected="memory of the emulated device", got="memory of a GPU")
    if not isinstance(interface, Mapping) or not {"shape", "typestr", "data"} <= set(interface):
        raise BadParamError.at(where, expected="a mapping with shape, typestr and data", got=interface)
    address, is_read_only = interface["data"]
    data_type = _ARRAY_INTERFACE_TYPES.get(interface["typestr"])
    if data_type is None:
        known = ", ".join(sorted(_ARRAY_INTERFACE_TYPES))
        raise UnsupportedDataTypeError.at(f"{where}.typestr", expected=f"one of {known}", got=interface["typestr"])
    _wait_for_producer(interface.get("stream"), context, stream)
    return TensorView(
        int(address),
        data_type,
        tuple(int(extent) for extent in interface["shape"]),
        _element_strides(interface.get("strides"), dtypes.info(data_type).size_bytes),
        bool(is_read_only),
        value,
    )


def _element_strides(byte_strides: object, size_bytes: int) -> tuple[int, ...] | None:
    if byte_strides is None:
        return None
    if not isinstance(byte_strides, tuple | list) or any(stride % size_bytes for stride in byte_strides):
        raise BadParamError.at(
            "__cuda_array_interface__.strides", expected=f"multiples of {size_bytes} bytes", got=byte_strides
        )
    return tuple(stride // size_bytes for stride in byte_strides)


def _wait_for_producer(producer: object, context: Context, stream: int) -> None:
    """Orders ``stream`` after the producer's stream; None asks for nothing."""
    if producer is None:
        return
    if not isinstance(producer, int) or producer == 0:
        raise BadParamError.at(
            "__cuda_array_interface__.stream", expected="None, 1, 2 or a stream handle", got=repr(producer)
        )
    if producer == stream:
        return
    driver = context.driver
    with context.activated():
        event = driver.event_create(EventFlags.DISABLE_TIMING)
        try:
            driver.event_record(event, producer)
            driver.stream_wait_event(stream, event)
        finally:
            driver.event_destroy(event)


def _no_tensor(value: object, where: str) -> LowdnnError:
    return AttributeTypeError.at(
        where,
        expected="a device tensor or buffer, an object with __dlpack__ or __cuda_array_interface__, or an address",
        got=f"{type(value).__name__} {value!r}"[:200],
    )
