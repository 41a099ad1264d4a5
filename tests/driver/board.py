"""A driver with its context current, and short ways to compile, launch and look at memory: for tests that run the same
on the emulated device and on a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from lowdnn.driver import nvrtc
from lowdnn.driver.base import Driver, DriverError, LaunchConfig
from lowdnn.runtime.compile import lowered

ARCH = "compute_90a"

#: ``add(x, number)`` adds the number to each thread's integer, ``scale(x, number)`` multiplies by it; one block.
ADD = """
extern "C" __global__ void add(unsigned* x, unsigned number) { x[threadIdx.x] += number; }
extern "C" __global__ void scale(unsigned* x, unsigned number) { x[threadIdx.x] *= number; }
"""


class Arguments:
    """A ``void*[]`` over the values: addresses as integers, anything else as NumPy scalars or bytes."""

    def __init__(self, *values: Any) -> None:
        packed = [value if isinstance(value, bytes) else _number(value).tobytes() for value in values]
        self._buffers = [ctypes.create_string_buffer(content, len(content)) for content in packed]
        self._array = (ctypes.c_void_p * len(packed))(*map(ctypes.addressof, self._buffers))
        self.address = ctypes.addressof(self._array)


class Board:
    """``driver``, its current ``context`` and what was allocated and loaded by it, which ``closed`` frees."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.context = driver.context_get_current()
        self._addresses: list[int] = []
        self._modules: list[int] = []

    def put(self, array: Any, label: str = "") -> int:
        array = np.ascontiguousarray(array)
        address = self.empty(array.nbytes, label)
        self.driver.memcpy_htod_async(address, array.ctypes.data, array.nbytes, 0)
        self.driver.stream_synchronize(0)
        return address

    def empty(self, size_bytes: int, label: str = "") -> int:
        self._addresses.append(self.driver.mem_alloc(size_bytes, label))
        return self._addresses[-1]

    def get(self, address: int, shape: Any, dtype: Any = np.uint32) -> Any:
        """The array at ``address`` when all work is done."""
        self.driver.context_synchronize()
        array = np.zeros(shape, dtype)
        self.driver.memcpy_dtoh_async(array.ctypes.data, address, array.nbytes, 0)
        self.driver.stream_synchronize(0)
        return array

    def function(self, source: str, name: str, headers: tuple[str, ...] = ()) -> int:
        """A kernel of CUDA C++, which may include these of the engines' ``headers``."""
        options = (f"--gpu-architecture={ARCH}", "-default-device")
        texts = {header: (files("lowdnn.engines") / header).read_text() for header in headers}
        return self.ptx_function(
            nvrtc.compile_program(source, name=f"{name}.cu", headers=texts, options=options).image, name
        )

    def ptx_function(self, ptx: bytes, name: str) -> int:
        self._modules.append(self.driver.module_load_data(lowered(ptx)))
        return self.driver.module_get_function(self._modules[-1], name)

    def launch(self, function: int, config: LaunchConfig, *arguments: Any, stream: int = 0) -> None:
        parameters = Arguments(*arguments)
        self.driver.prepare_launch(function, config, parameters.address)(stream)

    def closed(self) -> None:
        for module in self._modules:
            self.driver.module_unload(module)
        for address in self._addresses:
            self.driver.mem_free(address)


@contextmanager
def opened(driver: Driver) -> Iterator[Board]:
    """A board on ``driver``, whose primary context is current meanwhile."""
    before = driver.context_get_current()
    driver.context_set_current(driver.primary_context_retain(0))
    board = Board(driver)
    try:
        yield board
        board.closed()
    finally:
        driver.primary_context_release(0)
        driver.context_set_current(before)


def line(grid: int, block: int, shared_bytes: int = 0, **attributes: Any) -> LaunchConfig:
    return LaunchConfig((grid, 1, 1), (block, 1, 1), shared_bytes, **attributes)


def fails_with(name: str, call: Callable[[], object]) -> DriverError:
    """The error of ``call``, which must be the CUresult ``CUDA_ERROR_<name>``."""
    with pytest.raises(DriverError) as caught:
        call()
    assert caught.value.name == f"CUDA_ERROR_{name}", str(caught.value)
    return caught.value


def _number(value: Any) -> Any:
    return np.uint64(value) if isinstance(value, int) else value
