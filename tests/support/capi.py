"""A C caller for tests: calls by name, descriptors from attributes, and statuses checked."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, HeurMode, PointwiseMode
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.runtime import download, upload

N, T, D = AttributeName, AttributeType, DescriptorType

CTYPES: dict[AttributeType, Any] = {
    T.HANDLE: ctypes.c_void_p,
    T.BACKEND_DESCRIPTOR: ctypes.c_void_p,
    T.VOID_PTR: ctypes.c_void_p,
    T.BOOLEAN: ctypes.c_bool,
    T.INT64: ctypes.c_int64,
    T.INT32: ctypes.c_int32,
    T.FLOAT: ctypes.c_float,
    T.DOUBLE: ctypes.c_double,
    T.CHAR: ctypes.c_char,
}


class Caller:
    """``library``: the result of ``ctypes.CDLL``."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def status(self, name: str, *arguments: Any) -> Status:
        """The status of a call; Python's integers are passed as 64 bits, floats as doubles."""
        return Status(getattr(self.library, name)(*map(_argument, arguments)))

    def call(self, name: str, *arguments: Any) -> None:
        status = self.status(name, *arguments)
        assert status is Status.SUCCESS, f"{name}: {status.name}: {self.last_error()}"

    def output(self, name: str, *arguments: Any, kind: Any = ctypes.c_void_p) -> Any:
        """The value that a call writes through its last argument, a pointer."""
        value = kind()
        self.call(name, *arguments, ctypes.byref(value))
        return value.value

    def last_error(self, size: int = 4096) -> str:
        buffer = ctypes.create_string_buffer(b"#" * size, size)
        self.library.cudnnGetLastErrorString(buffer, ctypes.c_size_t(size))
        return buffer.value.decode()

    def handle(self) -> int:
        return int(self.output("cudnnCreate"))

    def create(self, kind: DescriptorType) -> int:
        return int(self.output("cudnnBackendCreateDescriptor", int(kind)))

    def set(self, descriptor: int, name: AttributeName, kind: AttributeType, *values: Any) -> Status:
        array = (CTYPES.get(kind, ctypes.c_int) * len(values))(*values)
        return self.status("cudnnBackendSetAttribute", descriptor, int(name), int(kind), len(values), array)

    def made(self, kind: DescriptorType, *attributes: tuple[Any, ...]) -> int:
        """A finalized descriptor of (name, type, values...)."""
        descriptor = self.create(kind)
        for attribute in attributes:
            assert self.set(descriptor, *attribute) is Status.SUCCESS, self.last_error()
        self.call("cudnnBackendFinalize", descriptor)
        return descriptor

    def get(self, descriptor: int, name: AttributeName, kind: AttributeType, requested: int = 64) -> list[Any]:
        """The elements of an attribute."""
        array, count = (CTYPES.get(kind, ctypes.c_int) * requested)(), ctypes.c_int64(-1)
        arguments = (descriptor, int(name), int(kind), requested, ctypes.byref(count), array)
        self.call("cudnnBackendGetAttribute", *arguments)
        return list(array)[: count.value]

    # -- graphs -----------------------------------------------------------------------------------------------
    def tensor(self, uid: int, dims: tuple[int, ...], strides: tuple[int, ...]) -> int:
        return self.made(
            D.TENSOR,
            (N.TENSOR_UNIQUE_ID, T.INT64, uid),
            (N.TENSOR_DATA_TYPE, T.DATA_TYPE, DataType.FLOAT),
            (N.TENSOR_DIMENSIONS, T.INT64, *dims),
            (N.TENSOR_STRIDES, T.INT64, *strides),
            (N.TENSOR_BYTE_ALIGNMENT, T.INT64, 16),
        )

    def add_graph(self, handle: int, *attributes: tuple[Any, ...]) -> int:
        """y (uid 3) = a (1) + b (2), of 4 by 8 floats."""
        mode = self.made(
            D.POINTWISE,
            (N.POINTWISE_MODE, T.POINTWISE_MODE, PointwiseMode.ADD),
            (N.POINTWISE_MATH_PREC, T.DATA_TYPE, DataType.FLOAT),
        )
        a, b, y = (self.tensor(uid, (4, 8), (8, 1)) for uid in (1, 2, 3))
        add = self.made(
            D.OPERATION_POINTWISE,
            (N.OPERATION_POINTWISE_PW_DESCRIPTOR, T.BACKEND_DESCRIPTOR, mode),
            (N.OPERATION_POINTWISE_XDESC, T.BACKEND_DESCRIPTOR, a),
            (N.OPERATION_POINTWISE_BDESC, T.BACKEND_DESCRIPTOR, b),
            (N.OPERATION_POINTWISE_YDESC, T.BACKEND_DESCRIPTOR, y),
        )
        return self.made(
            D.OPERATIONGRAPH,
            (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, add),
            (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
            *attributes,
        )

    def heuristics(self, graph: int) -> int:
        return self.made(
            D.ENGINEHEUR,
            (N.ENGINEHEUR_OPERATION_GRAPH, T.BACKEND_DESCRIPTOR, graph),
            (N.ENGINEHEUR_MODE, T.HEUR_MODE, HeurMode.A),
        )

    def plan(self, handle: int, graph: int) -> int:
        """The plan of the configuration that the heuristics put first."""
        config = self.create(D.ENGINECFG)
        array, count = (ctypes.c_void_p * 1)(config), ctypes.c_int64()
        arguments = (int(N.ENGINEHEUR_RESULTS), int(T.BACKEND_DESCRIPTOR), 1, ctypes.byref(count), array)
        self.call("cudnnBackendGetAttribute", self.heuristics(graph), *arguments)
        assert count.value >= 1
        return self.made(
            D.EXECUTION_PLAN,
            (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle),
            (N.EXECUTION_PLAN_ENGINE_CONFIG, T.BACKEND_DESCRIPTOR, config),
        )

    def pack(self, pointers: dict[int, int], *attributes: tuple[Any, ...], workspace: int = 0) -> int:
        return self.made(
            D.VARIANT_PACK,
            (N.VARIANT_PACK_UNIQUE_IDS, T.INT64, *pointers),
            (N.VARIANT_PACK_DATA_POINTERS, T.VOID_PTR, *pointers.values()),
            (N.VARIANT_PACK_WORKSPACE, T.VOID_PTR, workspace),
            *attributes,
        )


def _argument(value: Any) -> Any:
    if isinstance(value, int):
        return ctypes.c_int64(value)
    return ctypes.c_double(value) if isinstance(value, float) else value


class Memory:
    """Arrays on the device of a test, kept as long as the object lives."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._buffers: dict[int, tuple[DeviceBuffer, Any]] = {}

    def put(self, array: NDArray[Any]) -> int:
        """The address of a copy of ``array``, whose elements lie as in C order."""
        buffer = upload(self._runtime, array)
        self._buffers[buffer.address] = (buffer, array)
        return buffer.address

    def get(self, address: int) -> NDArray[Any]:
        """The values in memory now, in the shape and type of the array that was put there."""
        buffer, array = self._buffers[address]
        return np.asarray(download(buffer, array.dtype)).reshape(array.shape)

    def fill(self, address: int, byte: int) -> None:
        """Sets every byte of the array there."""
        buffer, array = self._buffers[address]
        buffer.copy_from_host(np.full(array.nbytes, byte, np.uint8))


DTYPES = {
    np.dtype(np.float32): DataType.FLOAT,
    np.dtype(np.float64): DataType.DOUBLE,
    np.dtype(np.float16): DataType.HALF,
}


def tensor_descriptor(caller: Caller, array: NDArray[Any]) -> int:
    """A descriptor of an array in C order."""
    descriptor = int(caller.output("cudnnCreateTensorDescriptor"))
    dims = (ctypes.c_int * array.ndim)(*array.shape)
    caller.call("cudnnSetTensorNdDescriptorEx", descriptor, 0, DTYPES[array.dtype], array.ndim, dims)
    return descriptor


def scale(value: float, dtype: Any = np.float32) -> Any:
    """alpha or beta in memory of the host."""
    return (ctypes.c_double if dtype == np.float64 else ctypes.c_float)(value)
