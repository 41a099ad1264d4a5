from __future__ import annotations

import gc
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from lowdnn.driver.base import DriverError
from lowdnn.driver.emulated.driver import EmulatedDriver
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.context import Context
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream
from lowdnn.status import InvalidValueError, NotInitializedError


@pytest.fixture
def driver() -> EmulatedDriver:
    driver = EmulatedDriver()
    driver.init()
    return driver


def is_released(driver: EmulatedDriver) -> bool:
    """True when nobody retains the primary context any more."""
    driver.primary_context_retain(0)
    driver.context_set_current(0xE000)
    before = driver.mem_get_info()[0]
    driver.mem_alloc(256)
    driver.primary_context_release(0)
    driver.primary_context_retain(0)
    found = driver.mem_get_info()[0] == before
    driver.primary_context_release(0)
    return found


class CurrentContext:
    """A driver that knows contexts 0x10 (primary) and 0x20 (the caller's) and which of them is current."""

    def __init__(self, current: int) -> None:
        self.current = current
        self.calls = 0

    def device_count(self) -> int:
        return 1

    def primary_context_retain(self, device: int) -> int:
        return 0x10

    def primary_context_release(self, device: int) -> None:
        pass

    def context_get_current(self) -> int:
        return self.current

    def context_set_current(self, context: int) -> None:
        self.calls += 1
        self.current = context


@pytest.mark.parametrize(("before", "after", "calls"), [(0x10, 0x10, 0), (0x20, 0x20, 2), (0, 0x10, 1)])
def test_the_callers_context_is_put_back(before: int, after: int, calls: int) -> None:
    driver = CurrentContext(before)
    context = Context(driver)  # type: ignore[arg-type]
    with context.activated():
        assert driver.current == 0x10
    assert (driver.current, driver.calls) == (after, calls)
    context.close()


def test_a_callers_context_that_was_released_is_not_put_back() -> None:
    """A thread that used one device closes it while it works on another."""
    driver = EmulatedDriver(devices=2)
    driver.init()
    first, second = Context(driver, 0), Context(driver, 1)
    with first.activated():
        pass
    with second.activated():
        first.close()
    assert driver.context_get_current() == second.handle
    second.close()


def test_nested_activation(device: Runtime) -> None:
    driver = device.driver
    driver.context_set_current(0)
    with device.context.activated():
        with device.context.activated():
            pass
        assert driver.context_get_current() == device.context.handle


def test_close_releases_once_and_later_use_is_told(driver: EmulatedDriver) -> None:
    context = Context(driver)
    context.close()
    context.close()
    assert is_released(driver)
    with pytest.raises(NotInitializedError, match="closed"):
        context.activated()
    with pytest.raises(NotInitializedError):
        context.synchronize()


def test_what_is_closed_behind_the_context_is_given_back(driver: EmulatedDriver) -> None:
    """Another library holds the context meanwhile."""
    driver.context_set_current(driver.primary_context_retain(0))
    before = driver.mem_get_info()[0]
    context = Context(driver)
    buffers, stream = [DeviceBuffer.allocate(context, 4096) for _ in range(2)], Stream.create(context)
    context.close()
    with pytest.raises(NotInitializedError, match="closed"):
        context.synchronize()
    assert driver.mem_get_info()[0] < before
    buffers[0].close()
    del buffers
    gc.collect()
    assert driver.mem_get_info()[0] == before
    stream.close()
    driver.primary_context_release(0)
    assert is_released(driver)


def test_collection_releases(driver: EmulatedDriver) -> None:
    context = Context(driver)
    assert context.compute_capability == (9, 0)
    del context
    gc.collect()
    assert is_released(driver)


def test_unknown_device(driver: EmulatedDriver) -> None:
    for wrong in (-1, 1, "0"):
        with pytest.raises(InvalidValueError, match=f"expected 0 to 0, got {wrong!r}"):
            Context(driver, wrong)  # type: ignore[arg-type]


def test_what_is_closed_while_a_stream_is_captured_is_given_back_later(device: Runtime) -> None:
    context = device.context
    kept, other = DeviceBuffer.allocate(context, 4096), DeviceBuffer.allocate(context, 4096)
    address = kept.address
    with Stream.create(context) as stream:
        stream.begin_capture()
        kept.close()
        with suppress(DriverError):
            device.driver.graph_destroy(stream.end_capture())
    other.close()
    with context.activated():
        assert device.driver.pointer_info(address) is None


def test_a_child_process_is_told_about_fork(driver: EmulatedDriver) -> None:
    context = Context(driver)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        message = "nothing raised"
        try:
            context.activated()
        except NotInitializedError as error:
            message = str(error)
        os.write(writer, message.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert "does not survive fork" in pipe.read()
    with context.activated():
        pass
    context.close()


def test_the_end_of_the_interpreter_is_quiet() -> None:
    code = (
        "from lowdnn.config import Config\n"
        "from lowdnn.runtime.runtime import Runtime\n"
        "from lowdnn.runtime.buffer import DeviceBuffer\n"
        "runtime = Runtime.open('emulated', config=Config(disk_cache=False))\n"
        "buffer = DeviceBuffer.allocate(runtime.context, 64)\n"
    )
    root = Path(__file__).parents[2]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
