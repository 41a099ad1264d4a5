"""A driver with one module loaded: what the host side of a test kernel needs, on either kind of device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from lowdnn.driver.base import Driver, FunctionAttribute, LaunchConfig
from lowdnn.tensor_map import TensorMapDataType, TensorMapSwizzle, TiledMap


class Device:
    """Buffers, tensor maps and launches over ``driver``; ``ptx`` is loaded when the first kernel is launched.

    ``change`` is applied to the configuration of every launch.
    """

    def __init__(
        self, driver: Driver, ptx: str, change: Callable[[LaunchConfig], LaunchConfig] = lambda config: config
    ) -> None:
        driver.init()
        driver.context_set_current(driver.primary_context_retain(0))
        self._driver = driver
        self._ptx = ptx
        self._change = change
        self._module = 0

    def put(self, array: np.ndarray, label: str) -> int:
        """A new buffer that holds ``array``."""
        array = np.ascontiguousarray(array)
        address = self.empty(array.nbytes, label)
        self._driver.memcpy_htod_async(address, array.ctypes.data, array.nbytes, 0)
        self._driver.context_synchronize()
        return address

    def empty(self, size_bytes: int, label: str) -> int:
        return self._driver.mem_alloc(size_bytes, label)

    def get(self, address: int, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
        self._driver.context_synchronize()
        array = np.empty(shape, dtype)
        self._driver.memcpy_dtoh_async(array.ctypes.data, address, array.nbytes, 0)
        self._driver.context_synchronize()
        return array

    def tensor_map(
        self,
        data_type: TensorMapDataType,
        address: int,
        shape: tuple[int, int],
        box: tuple[int, int],
        swizzle: TensorMapSwizzle = TensorMapSwizzle.NONE,
    ) -> bytes:
        """The map of a dense row-major matrix; ``shape`` and ``box`` are (rows, columns)."""
        row_bytes = shape[1] * data_type.size_bytes
        tiled = TiledMap(data_type, address, shape[::-1], (row_bytes,), box[::-1], (1, 1), swizzle=swizzle)
        return self._driver.tensor_map_encode_tiled(tiled)

    def launch(self, name: str, config: LaunchConfig, *arguments: int | np.generic | bytes) -> None:
        """Launches kernel ``name``; an ``int`` is an address."""
        config = self._change(config)
        driver = self._driver
        self._module = self._module or driver.module_load_data(self._ptx.encode())
        function = driver.module_get_function(self._module, name)
        driver.function_set_attribute(function, FunctionAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, config.shared_bytes)
        packed = [ctypes.create_string_buffer(text, len(text)) for text in map(_packed, arguments)]
        parameters = (ctypes.c_void_p * len(packed))(*map(ctypes.addressof, packed))
        driver.prepare_launch(function, config, ctypes.addressof(parameters))(0)


def _packed(argument: int | np.generic | bytes) -> bytes:
    if isinstance(argument, int):
        return argument.to_bytes(8, "little")
    return argument if isinstance(argument, bytes) else argument.tobytes()
