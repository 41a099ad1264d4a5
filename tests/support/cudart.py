"""A C caller of the CUDA runtime for tests: calls by name, and arrays in its memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

#: cudaMemcpyDefault: where the pointers lead says what is copied.
DEFAULT_KIND = 4


class MemsetParams(ctypes.Structure):
    """cudaMemsetParams."""

    _fields_ = (
        ("destination", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
        ("value", ctypes.c_uint),
        ("element_bytes", ctypes.c_uint),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class CudaRuntime:
    """``library``: the result of ``ctypes.CDLL``."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.cudaGetErrorString.restype = ctypes.c_char_p

    def status(self, name: str, *arguments: Any) -> int:
        """The cudaError_t of a call; Python's integers are passed as 64 bits."""
        code: int = getattr(self.library, name)(*map(_argument, arguments))
        return code

    def call(self, name: str, *arguments: Any) -> None:
        code = self.status(name, *arguments)
        assert code == 0, f"{name}: {code}: {self.text(code)}"

    def output(self, name: str, *arguments: Any, kind: Any = ctypes.c_void_p) -> Any:
        """The value that a call writes through its first argument, a pointer."""
        value = kind()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def text(self, code: int) -> str:
        found: bytes = self.library.cudaGetErrorString(code)
        return found.decode()

    def put(self, array: NDArray[Any]) -> int:
        """The address of a copy of the array's bytes on the device."""
        data = np.ascontiguousarray(array)
        address = int(self.output("cudaMalloc", max(data.nbytes, 1)))
        self.call("cudaMemcpy", address, data.ctypes.data, data.nbytes, 1)
        return address

    def get(self, address: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        self.call("cudaDeviceSynchronize")
        array = np.empty(shape, dtype)
        self.call("cudaMemcpy", array.ctypes.data, address, array.nbytes, 2)
        return array


def _argument(value: Any) -> Any:
    return ctypes.c_uint64(value & (1 << 64) - 1) if isinstance(value, int) else value
