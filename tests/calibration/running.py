"""Runs calibration cases on a driver: the same way on the GPU and on the emulated device."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from lowdnn.driver import open_driver
from lowdnn.driver.base import Driver, FunctionAttribute
from lowdnn.tensor_map import TiledMap
from tests.calibration.case import STORAGE, Array, Case, MapOf

#: Dynamic shared memory above this needs the function's attribute.
_DEFAULT_SHARED_BYTES = 48 << 10


@contextmanager
def opened(kind: str) -> Iterator[Driver]:
    """The driver of ``kind`` with its primary context current."""
    driver = open_driver(kind)
    driver.context_set_current(driver.primary_context_retain(0))
    try:
        yield driver
    finally:
        driver.primary_context_release(0)


def execute(case: Case, driver: Driver, inputs: Sequence[Array] | None = None) -> list[Array]:
    """One launch; the contents of the outputs in the dtype that stores their kind. ``inputs`` stand in for the case's.

    Raises DriverError where the program does not load or faults.
    """
    sources = [_upload(driver, values) for values in (case.inputs if inputs is None else inputs)]
    results = [_initial(output.kind, output.count, output.initial) for output in case.outputs]
    targets = [_upload(driver, values) for values in results]
    _launch(case, driver, [*sources, *targets])
    for result, address in zip(results, targets, strict=True):
        driver.memcpy_dtoh_async(result.ctypes.data, address, result.nbytes, 0)
    driver.context_synchronize()
    for address in (*sources, *targets):
        driver.mem_free(address)
    return results


def _initial(kind: str, count: int, values: Array | None) -> Array:
    result = np.zeros(count, STORAGE[kind])
    if values is not None:
        result[:] = values
    return result


def _upload(driver: Driver, values: Array) -> int:
    stored = np.ascontiguousarray(values)
    address = driver.mem_alloc(stored.nbytes)
    driver.memcpy_htod_async(address, stored.ctypes.data, stored.nbytes, 0)
    driver.context_synchronize()
    return address


def _launch(case: Case, driver: Driver, addresses: list[int]) -> None:
    module = driver.module_load_data(case.ptx.encode())
    function = driver.module_get_function(module, "case")
    if case.launch.shared_bytes > _DEFAULT_SHARED_BYTES:
        attribute = FunctionAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.function_set_attribute(function, attribute, case.launch.shared_bytes)
    values = [ctypes.c_uint64(address) for address in addresses]
    maps = [_encoded(driver, one, addresses[one.buffer]) for one in case.tensor_maps]
    pointers = (ctypes.c_void_p * (len(values) + len(maps)))(*map(ctypes.addressof, [*values, *maps]))
    driver.prepare_launch(function, case.launch, ctypes.addressof(pointers))(0)
    driver.context_synchronize()
    driver.module_unload(module)


def _encoded(driver: Driver, tensor_map: MapOf, address: int) -> ctypes.Array[ctypes.c_char]:
    description = replace(tensor_map.description, address=address)
    if isinstance(description, TiledMap):
        encoded = driver.tensor_map_encode_tiled(description)
    else:
        encoded = driver.tensor_map_encode_im2col(description)
    return ctypes.create_string_buffer(encoded, len(encoded))
