"""A host program over several emulated devices: memory, modules, streams and launches by device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from lowdnn.driver import open_driver
from lowdnn.driver.base import Driver, DriverError, LaunchConfig


class Host:
    """``devices`` devices of one driver, each with its context held; calls name the device by its number."""

    def __init__(self, devices: int = 2, policy: str = "lockstep", peers: bool = True) -> None:
        self.driver: Driver = open_driver("emulated", policy=policy, devices=devices)
        self.contexts = [self.driver.primary_context_retain(device) for device in range(devices)]
        self._kept: list[object] = []
        if peers:
            for device, other in ((a, b) for a in range(devices) for b in range(devices) if a != b):
                with self.on(device):
                    self.driver.context_enable_peer_access(self.contexts[other])

    @contextmanager
    def on(self, device: int) -> Iterator[Driver]:
        before = self.driver.context_get_current()
        self.driver.context_set_current(self.contexts[device])
        try:
            yield self.driver
        finally:
            self.driver.context_set_current(before)

    def put(self, device: int, array: Any, label: str = "") -> int:
        array = np.ascontiguousarray(array)
        with self.on(device) as driver:
            address = driver.mem_alloc(array.nbytes, label)
            driver.memcpy_htod_async(address, array.ctypes.data, array.nbytes, 0)
            driver.stream_synchronize(0)
        return address

    def get(self, device: int, address: int, shape: Any, dtype: Any, stream: int = 0) -> Any:
        array = np.zeros(shape, dtype)
        with self.on(device) as driver:
            driver.memcpy_dtoh_async(array.ctypes.data, address, array.nbytes, stream)
            driver.stream_synchronize(stream)
        return array

    def load(self, device: int, ptx: str, name: str) -> int:
        with self.on(device) as driver:
            return driver.module_get_function(driver.module_load_data(ptx.encode()), name)

    def stream(self, device: int) -> int:
        with self.on(device) as driver:
            return driver.stream_create()

    def prepare(
        self, device: int, function: int, arguments: tuple[Any, ...], grid: int = 1, block: int = 32, **options: Any
    ) -> Callable[[int], None]:
        """A launch; ``arguments`` are addresses and NumPy scalars."""
        values = [np.array(argument, np.uint64 if isinstance(argument, int) else None) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        self._kept += [values, pointers]
        config = LaunchConfig((grid, 1, 1), (block, 1, 1), **options)
        with self.on(device) as driver:
            return driver.prepare_launch(function, config, ctypes.addressof(pointers))

    def launch(self, device: int, function: int, *arguments: Any, stream: int = 0, **options: Any) -> None:
        launch = self.prepare(device, function, arguments, **options)
        with self.on(device):
            launch(stream)

    def synchronize(self, *devices: int) -> None:
        for device in devices or range(len(self.contexts)):
            with self.on(device) as driver:
                driver.context_synchronize()


def faults_of(host: Host) -> list[DriverError]:
    """The errors of all devices when the host waits for them."""
    found = []
    for device in range(len(host.contexts)):
        try:
            host.synchronize(device)
        except DriverError as error:
            found.append(error)
    return found


def fails_with(name: str, call: Callable[[], object]) -> DriverError:
    with pytest.raises(DriverError) as caught:
        call()
    assert caught.value.name == f"CUDA_ERROR_{name}"
    return caught.value
