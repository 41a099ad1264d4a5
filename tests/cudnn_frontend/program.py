"""Programs of cudnn-frontend for tests: graphs, arrays for their tensors, what comes out."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import cudnn
import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from tests.support.cudart import CudaRuntime

Array = NDArray[Any]
DT = cudnn.data_type

DATA_TYPES: Mapping[Any, Any] = {
    np.dtype(np.float32): DT.FLOAT,
    np.dtype(np.float16): DT.HALF,
    np.dtype(ml_dtypes.bfloat16): DT.BFLOAT16,
    np.dtype(ml_dtypes.float8_e4m3fn): DT.FP8_E4M3,
    np.dtype(ml_dtypes.float8_e5m2): DT.FP8_E5M2,
    np.dtype(np.int8): DT.INT8,
    np.dtype(np.uint8): DT.UINT8,
    np.dtype(np.int32): DT.INT32,
    np.dtype(np.int64): DT.INT64,
    np.dtype(np.bool_): DT.BOOLEAN,
}
NUMPY_TYPES: Mapping[Any, Any] = {value: key for key, value in DATA_TYPES.items()}
#: The wheel's version: (major, minor).
VERSION = tuple(int(number) for number in cudnn.__version__.split(".")[:2])
FALLBACKS = [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK]


class Session:
    """A handle of cudnn-frontend and the CUDA runtime of the process."""

    def __init__(self) -> None:
        self.cudart = CudaRuntime(ctypes.CDLL("libcudart.so.13"))
        self.handle = cudnn.create_handle()

    def close(self) -> None:
        cudnn.destroy_handle(self.handle)

    def program(self, **options: Any) -> Program:
        return Program(self, **options)


class Program:
    """A graph, built in the terms of cudnn-frontend, with arrays for its inputs.

    options: arguments of ``pygraph``; intermediate and compute types are FLOAT unless they say otherwise.
    """

    def __init__(self, session: Session, **options: Any) -> None:
        known = {"intermediate_data_type": DT.FLOAT, "compute_data_type": DT.FLOAT, "handle": session.handle}
        self.session = session
        self.graph = cudnn.pygraph(**(known | options))
        self.outputs: list[Any] = []
        self.pack: dict[Any, int] = {}
        self._host: list[Array] = []

    def input(self, array: Array, *, channels_last: bool = False, **options: Any) -> Any:
        """A tensor with the array's dims, dense in their order or with the channels innermost."""
        strides = channels_last_strides(array.shape) if channels_last else dense_strides(array.shape)
        given = {"dim": list(array.shape), "stride": strides, "data_type": DATA_TYPES[array.dtype]} | options
        tensor = self.graph.tensor(**given)
        self.pack[tensor] = self.session.cudart.put(storage(array, given["stride"]))
        return tensor

    def scalar(self, value: float, dtype: DTypeLike = np.float32, rank: int = 4) -> Any:
        """A tensor of one element on the host, given with each execution."""
        data = np.array([value], dtype)
        ones = [1] * rank
        tensor = self.graph.tensor(dim=ones, stride=ones, data_type=DATA_TYPES[data.dtype], is_pass_by_value=True)
        self._host.append(data)
        self.pack[tensor] = data.ctypes.data
        return tensor

    def output(self, tensor: Any, dtype: DTypeLike | None = None, **settings: Any) -> Any:
        """Marks the tensor as stored; ``settings``: dim, stride."""
        tensor.set_output(True)
        if dtype is not None:
            tensor.set_data_type(DATA_TYPES[np.dtype(dtype)])
        for name, value in settings.items():
            getattr(tensor, f"set_{name}")(value)
        self.outputs.append(tensor)
        return tensor

    def build(self, heuristics: Sequence[Any] = FALLBACKS) -> None:
        self.graph.build(list(heuristics))

    def allocate(self) -> None:
        """Poisoned memory for the outputs."""
        for tensor in self.outputs:
            size = span(tensor.get_dim(), tensor.get_stride()) * NUMPY_TYPES[tensor.get_data_type()].itemsize
            self.pack[tensor] = self.session.cudart.put(np.full(size, 0xFF, np.uint8))

    def workspace(self) -> int:
        return self.session.cudart.put(np.full(max(self.graph.get_workspace_size(), 1), 0xFF, np.uint8))

    def results(self) -> list[Array]:
        return [self.result(tensor) for tensor in self.outputs]

    def result(self, tensor: Any) -> Array:
        dtype = NUMPY_TYPES[tensor.get_data_type()]
        dims, strides = tensor.get_dim(), tensor.get_stride()
        flat = self.session.cudart.get(self.pack[tensor], (span(dims, strides),), dtype)
        return np.lib.stride_tricks.as_strided(flat, dims, [stride * dtype.itemsize for stride in strides]).copy()

    def run(self, heuristics: Sequence[Any] = FALLBACKS) -> list[Array]:
        """Builds and executes; returns the outputs in the order in which they were marked."""
        self.build(heuristics)
        self.allocate()
        self.graph.execute(self.pack, self.workspace(), handle=self.session.handle)
        return self.results()


def dense_strides(dims: Sequence[int]) -> list[int]:
    return [int(np.prod(dims[axis + 1 :], dtype=int)) for axis in range(len(dims))]


def channels_last_strides(dims: Sequence[int]) -> list[int]:
    """Strides of [n, c, *pixels] in memory as [n, *pixels, c]."""
    n, c, *pixels = dims
    inner = dense_strides([n, *pixels, c])
    return [inner[0], inner[-1], *inner[1:-1]]


def span(dims: Sequence[int], strides: Sequence[int]) -> int:
    return 1 + sum((dim - 1) * stride for dim, stride in zip(dims, strides, strict=True))


def storage(array: Array, strides: Sequence[int]) -> Array:
    """The elements as they lie in memory; gaps are NaN, or all bits 1."""
    flat = np.full(span(array.shape, strides) * array.itemsize, 0xFF, np.uint8).view(array.dtype)
    np.lib.stride_tricks.as_strided(flat, array.shape, [stride * array.itemsize for stride in strides])[...] = array
    return flat
