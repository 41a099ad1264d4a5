"""Device buffers: memory with an address and a size, and where it is known a shape and a data type."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import DataType
from lowdnn.runtime import dlpack
from lowdnn.runtime.context import Context
from lowdnn.runtime.owned import Owned
from lowdnn.runtime.stream import Stream
from lowdnn.status import BadParamError, SizeInsufficientError, UnsupportedDataTypeError

#: DLPack's kDLCUDA, the one kind of memory that ``__cuda_array_interface__`` can describe.
_DLPACK_CUDA = 2


class DeviceBuffer(Owned):
    """``size_bytes`` of device memory at ``address``.

    ``shape`` and ``strides`` (in elements) with ``data_type`` say how it is read; a buffer of raw bytes has none of
    them and cannot be exported. Copies between devices and fills are ordered in the stream that they are given and
    wait for nothing; copies from and to the host wait for it.
    """

    def __init__(
        self,
        context: Context,
        address: int,
        size_bytes: int,
        *,
        data_type: DataType | None = None,
        shape: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
        is_borrowed: bool = True,
    ) -> None:
        """A view of memory that someone else owns, unless ``is_borrowed`` is False. ``strides`` default to C order."""
        super().__init__(context, address, is_borrowed=is_borrowed, size_bytes=size_bytes)
        self.size_bytes = size_bytes
        self.data_type = data_type
        self.shape = shape
        self.strides = c_strides(shape) if strides is None and shape is not None else strides

    @classmethod
    def allocate(
        cls,
        context: Context,
        size_bytes: int,
        *,
        data_type: DataType | None = None,
        shape: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
        label: str = "",
    ) -> DeviceBuffer:
        """New memory, 256-byte aligned; size 0 has address 0. ``label`` names it in the emulated device's reports."""
        address = context.allocate(size_bytes, label or "DeviceBuffer")
        return cls(context, address, size_bytes, data_type=data_type, shape=shape, strides=strides, is_borrowed=False)

    def view(
        self,
        offset_bytes: int,
        size_bytes: int,
        *,
        data_type: DataType | None = None,
        shape: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
    ) -> DeviceBuffer:
        """A part of this memory, which is valid as long as this buffer is open.

        Raises SizeInsufficientError where the part reaches past the end of this buffer.
        """
        self._check_fits("view", offset_bytes + size_bytes)
        return _View(self, offset_bytes, size_bytes, data_type, shape, strides)

    @property
    def address(self) -> int:
        return self._open_handle()

    @property
    def ptr(self) -> int:
        """The address, under the name that array libraries use."""
        return self._open_handle()

    def copy_from_host(self, source: NDArray[Any], stream: Stream | None = None) -> None:
        """Copies the bytes of a C-contiguous array to the start of the buffer. Waits for the stream."""
        if not source.flags.c_contiguous:
            raise BadParamError.at(
                "DeviceBuffer.source", expected="a C-contiguous array", got=f"strides {source.strides}"
            )
        self._check_fits("source", source.nbytes)
        driver, handle = self.context.driver, 0 if stream is None else stream.handle
        with self.context.activated():
            driver.memcpy_htod_async(self.address, source.ctypes.data, source.nbytes, handle)
            driver.stream_synchronize(handle)

    def to_host(self, stream: Stream | None = None) -> NDArray[Any]:
        """A copy as an array of the data type's storage, packed in C order; raw bytes where there is no data type.

        Waits for the stream.
        """
        stored = self._to_host_bytes(stream)
        if self.data_type is None or self.shape is None or self.strides is None:
            return stored
        storage = dtypes.info(self.data_type).storage
        elements = stored[: stored.size // storage.itemsize * storage.itemsize].view(storage)
        byte_strides = tuple(stride * storage.itemsize for stride in self.strides)
        return np.lib.stride_tricks.as_strided(elements, self.shape, byte_strides).copy()

    def copy_from(self, source: DeviceBuffer, stream: Stream) -> None:
        """Copies another buffer of the same device to the start of this one, in stream order."""
        self._check_fits("source", source.size_bytes)
        with self.context.activated():
            self.context.driver.memcpy_dtod_async(self.address, source.address, source.size_bytes, stream.handle)

    def fill_bytes(self, value: int, stream: Stream | None = None) -> None:
        """Sets every byte to ``value`` (0 to 255), in stream order."""
        with self.context.activated():
            self.context.driver.memset_d8_async(
                self.address, value, self.size_bytes, 0 if stream is None else stream.handle
            )

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """Version 3; its stream is None: the caller orders the work."""
        if self.context.driver.dlpack_device_type != _DLPACK_CUDA:
            raise AttributeError("__cuda_array_interface__: the memory of an emulated device cannot be read by others")
        data_type, shape, strides = self._described()
        facts = dtypes.info(data_type)
        if facts.is_bit_pattern:
            raise AttributeError(f"__cuda_array_interface__: NumPy has no type for {data_type.name}; use DLPack")
        return {
            "version": 3,
            "shape": shape,
            "typestr": facts.storage.str,
            "data": (self.address, False),
            "strides": tuple(stride * facts.size_bytes for stride in strides),
            "stream": None,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.context.driver.dlpack_device_type, self.context.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule over this memory; the consumer's ``stream`` waits for nothing, since work is ordered by the caller.

        Raises BufferError where a copy or another device is asked for, for a ``stream`` that DLPack does not know, and
        for a consumer that names none of the emulated device: it takes the memory for the host's, as NumPy does.
        """
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("DeviceBuffer.__dlpack__: exports its own memory on its own device, never a copy")
        if stream is None and self.context.driver.dlpack_device_type != _DLPACK_CUDA:
            raise BufferError("DeviceBuffer.__dlpack__: the emulated device has it; copy it with to_host() or numpy()")
        if stream is not None and (type(stream) is not int or stream < -1 or stream == 0):
            raise BufferError(
                f"DeviceBuffer.__dlpack__: expected a stream's handle, 1 (legacy), 2 (per-thread) or -1, got {stream!r}"
            )
        data_type, shape, strides = self._described()
        return dlpack.make_capsule(
            self,
            address=self.address,
            device=self.__dlpack_device__(),
            data_type=data_type,
            shape=shape,
            strides=strides,
            is_versioned=max_version is not None and max_version[0] >= 1,
        )

    def _described(self) -> tuple[DataType, tuple[int, ...], tuple[int, ...]]:
        if self.data_type is None or self.shape is None or self.strides is None:
            raise UnsupportedDataTypeError.at("DeviceBuffer", expected="a data type and a shape", got="raw bytes")
        return self.data_type, self.shape, self.strides

    def _to_host_bytes(self, stream: Stream | None) -> NDArray[np.uint8]:
        stored = np.empty(self.size_bytes, np.uint8)
        handle = 0 if stream is None else stream.handle
        with self.context.activated():
            if self.size_bytes:
                self.context.driver.memcpy_dtoh_async(stored.ctypes.data, self.address, self.size_bytes, handle)
            self.context.driver.stream_synchronize(handle)
        return stored

    def _check_fits(self, what: str, size_bytes: int) -> None:
        if size_bytes > self.size_bytes:
            raise SizeInsufficientError.at(
                f"DeviceBuffer.{what}", expected=f"at most {self.size_bytes} bytes", got=size_bytes
            )

    def _destroy(self, handle: int) -> None:
        if handle:
            self.context.driver.mem_free(handle)


class _View(DeviceBuffer):
    """A part of another buffer, which it keeps from being collected."""

    def __init__(
        self,
        base: DeviceBuffer,
        offset_bytes: int,
        size_bytes: int,
        data_type: DataType | None,
        shape: tuple[int, ...] | None,
        strides: tuple[int, ...] | None,
    ) -> None:
        address = base.address + offset_bytes
        super().__init__(base.context, address, size_bytes, data_type=data_type, shape=shape, strides=strides)
        self._base = base

    def _open_handle(self) -> int:
        self._base._open_handle()
        return super()._open_handle()


def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a packed array in C order."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
