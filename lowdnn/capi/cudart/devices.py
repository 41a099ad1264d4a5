"""The device, versions and last errors."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from lowdnn.capi.cudart.state import DEVICE, RuntimeState
from lowdnn.capi.errors import Call
from lowdnn.capi.memory import Address, write_bytes, write_outputs
from lowdnn.driver.base import DeviceAttribute
from lowdnn.driver.emulated.results import driver_error
from lowdnn.driver.results import CuResult
from lowdnn.mirrored import CUDA_VERSION
from lowdnn.status import BadParamError

#: Bytes of a cudaDeviceProp, in which fields that the device does not report are zero.
_PROPERTIES_BYTES: Final = 1008
_NAME_BYTES: Final = 256
_TOTAL_MEMORY_AT: Final = 288
_PROPERTIES: Final[Mapping[DeviceAttribute, tuple[int, str]]] = {
    DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK: (296, "Q"),
    DeviceAttribute.MAX_REGISTERS_PER_BLOCK: (304, "i"),
    DeviceAttribute.WARP_SIZE: (308, "i"),
    DeviceAttribute.MAX_THREADS_PER_BLOCK: (320, "i"),
    DeviceAttribute.MAX_GRID_DIM_X: (336, "i"),
    DeviceAttribute.MAX_GRID_DIM_Y: (340, "i"),
    DeviceAttribute.MAX_GRID_DIM_Z: (344, "i"),
    DeviceAttribute.COMPUTE_CAPABILITY_MAJOR: (360, "i"),
    DeviceAttribute.COMPUTE_CAPABILITY_MINOR: (364, "i"),
    DeviceAttribute.MULTIPROCESSOR_COUNT: (384, "i"),
    DeviceAttribute.GLOBAL_MEMORY_BUS_WIDTH_BITS: (592, "i"),
    DeviceAttribute.L2_CACHE_BYTES: (596, "i"),
    DeviceAttribute.MAX_THREADS_PER_MULTIPROCESSOR: (604, "i"),
    DeviceAttribute.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: (624, "Q"),
    DeviceAttribute.MAX_REGISTERS_PER_MULTIPROCESSOR: (632, "i"),
    DeviceAttribute.COOPERATIVE_LAUNCH: (668, "i"),
    DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: (672, "Q"),
    DeviceAttribute.MEMORY_POOLS_SUPPORTED: (720, "i"),
    DeviceAttribute.CLUSTER_LAUNCH: (748, "i"),
}


def get_device_count(_: RuntimeState, count: Address) -> None:
    """One device, however many the emulated driver has."""
    write_outputs((count, "i", DEVICE + 1, "cudaGetDeviceCount.count"))


def get_device(_: RuntimeState, device: Address) -> None:
    write_outputs((device, "i", DEVICE, "cudaGetDevice.device"))


def set_device(state: RuntimeState, device: int) -> None:
    """Raises DriverError (INVALID_DEVICE) for any device but the one there is."""
    state.driver.device_name(device)
    if device != DEVICE:
        problem = f"expected {DEVICE}: the stand-in for the runtime serves the first emulated device"
        raise driver_error("cudaSetDevice", CuResult.INVALID_DEVICE, device, problem)


def get_attribute(state: RuntimeState, value: Address, attribute: int, device: int) -> None:
    where = "cudaDeviceGetAttribute"
    if attribute not in (*DeviceAttribute,):
        raise BadParamError.at(f"{where}.attr", expected="an attribute that the emulated device has", got=attribute)
    found = state.driver.device_attribute(device, DeviceAttribute(attribute))
    write_outputs((value, "i", found, f"{where}.value"))


def get_properties(state: RuntimeState, properties: Address, device: int) -> None:
    """Writes a cudaDeviceProp with the name, the memory and the attributes that the device reports.

    Source: driver_types.h of CUDA 13.0.
    """
    driver = state.driver
    content = bytearray(_PROPERTIES_BYTES)
    struct.pack_into(f"{_NAME_BYTES - 1}s", content, 0, driver.device_name(device).encode())
    struct.pack_into("<Q", content, _TOTAL_MEMORY_AT, driver.device_total_memory_bytes(device))
    for attribute, (offset, form) in _PROPERTIES.items():
        struct.pack_into(f"<{form}", content, offset, driver.device_attribute(device, attribute))
    write_bytes(properties, bytes(content), "cudaGetDeviceProperties.prop")


def synchronize(state: RuntimeState) -> None:
    state.entered().context_synchronize()


def runtime_version(_: RuntimeState, version: Address) -> None:
    write_outputs((version, "i", CUDA_VERSION, "cudaRuntimeGetVersion.runtimeVersion"))


def driver_version(state: RuntimeState, version: Address) -> None:
    write_outputs((version, "i", state.driver.driver_version(), "cudaDriverGetVersion.driverVersion"))


CALLS: Mapping[str, Call] = {
    "cudaGetDeviceCount": get_device_count,
    "cudaGetDevice": get_device,
    "cudaSetDevice": set_device,
    "cudaDeviceGetAttribute": get_attribute,
    "cudaGetDeviceProperties": get_properties,
    "cudaDeviceSynchronize": synchronize,
    "cudaRuntimeGetVersion": runtime_version,
    "cudaDriverGetVersion": driver_version,
}
