"""Several emulated devices of one driver: what each has of its own, and how one reaches another's memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from lowdnn.driver import open_driver
from lowdnn.driver.base import DeviceAttribute, DriverError, EventFlags, PointerInfo
from lowdnn.status import BadParamError
from tests.driver.emulated.devices.host import Host, fails_with

#: y[t] = x[t] + c for each of 32 threads.
ADD = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 x, .param .u64 y, .param .u32 c)
{
  .reg .b32 %r<4>; .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [y];
  ld.param.u32 %r1, [c];
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %rd3, %r2, 4;
  add.u64 %rd4, %rd1, %rd3;
  add.u64 %rd5, %rd2, %rd3;
  ld.global.u32 %r3, [%rd4];
  add.u32 %r3, %r3, %r1;
  st.global.u32 [%rd5], %r3;
  ret;
}
"""
X = np.arange(32, dtype=np.uint32)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_each_device_has_memory_streams_and_modules_of_its_own(devices: int) -> None:
    host = Host(devices, peers=False)
    assert host.driver.device_count() == devices
    facts = {host.driver.device_attribute(d, DeviceAttribute.MULTIPROCESSOR_COUNT) for d in range(devices)}
    assert facts == {132}
    outputs = []
    for device in range(devices):
        x, y = host.put(device, X, f"x{device}"), host.put(device, X * 0, f"y{device}")
        outputs.append(y)
        function, stream = host.load(device, ADD, "add"), host.stream(device)
        host.launch(device, function, x, y, np.uint32(device), stream=stream)
        with host.on(device) as driver:
            assert driver.context_get_device() == device
            assert driver.stream_context(stream) == host.contexts[device]
            driver.stream_synchronize(stream)
            total = driver.device_total_memory_bytes(device)
            assert driver.mem_get_info() == (total - 256, total)
    with host.on(0) as driver:
        assert [driver.pointer_info(y + 4) for y in outputs] == [PointerInfo(y, 128, d) for d, y in enumerate(outputs)]
    for device, y in enumerate(outputs):
        assert (host.get(device, y, 32, np.uint32) == X + device).all()


def test_numbers_of_devices_are_checked() -> None:
    host = Host(2)
    fails_with("INVALID_DEVICE", lambda: host.driver.primary_context_retain(2))
    fails_with("INVALID_DEVICE", lambda: host.driver.device_name(-1))
    fails_with("INVALID_CONTEXT", lambda: host.driver.context_set_current(host.contexts[1] + 1))
    for devices in (0, 17, "2", True):
        with pytest.raises(BadParamError, match=r"EmulatedDriver\.devices: expected 1 to 16"):
            open_driver("emulated", devices=devices)  # type: ignore[arg-type]
    assert open_driver("emulated", policy="fuzz(7),devices=3,races").device_count() == 3
    assert open_driver("emulated", policy="lockstep,devices=3", devices=2).device_count() == 2
    with pytest.raises(BadParamError, match="devices: expected 1 to 16, got 0"):
        open_driver("emulated", policy="lockstep,devices=0")
    with pytest.raises(BadParamError, match="policy: expected POLICY with"):
        open_driver("emulated", policy="lockstep,devices=two")


def launched(host: Host, function: int, x: int, y: int) -> None:
    host.launch(0, function, x, y, np.uint32(1))
    host.synchronize(0)


def add_across(host: Host, x_on: int, y_on: int) -> tuple[int, Callable[[], None]]:
    x, y = host.put(x_on, X, "x"), host.put(y_on, X * 0, "y")
    return y, partial(launched, host, host.load(0, ADD, "add"), x, y)


@pytest.mark.parametrize(("x_on", "y_on"), [(1, 0), (0, 1)])
def test_memory_of_another_device_needs_peer_access(x_on: int, y_on: int) -> None:
    host = Host(2, peers=False)
    _, run = add_across(host, x_on, y_on)
    error = fails_with("ILLEGAL_ADDRESS", run)
    name = "x" if x_on else "y"
    assert f"{name} is memory of device 1, to which device 0 has no peer access" in error.explanation
    assert error.report["kind"] == "no-peer-access"


def test_peer_access_has_a_direction_and_can_be_taken_back() -> None:
    host = Host(2, peers=False)
    assert host.driver.device_can_access_peer(0, 1)
    assert not host.driver.device_can_access_peer(1, 1)
    with host.on(1) as driver:
        driver.context_enable_peer_access(host.contexts[0])
    fails_with("ILLEGAL_ADDRESS", add_across(host, 1, 0)[1])

    host = Host(2, peers=False)
    with host.on(0) as driver:
        driver.context_enable_peer_access(host.contexts[1])
        fails_with("PEER_ACCESS_ALREADY_ENABLED", lambda: driver.context_enable_peer_access(host.contexts[1]))
        fails_with("INVALID_DEVICE", lambda: driver.context_enable_peer_access(host.contexts[0]))
    for x_on, y_on in ((0, 1), (1, 0), (1, 1)):
        y, run = add_across(host, x_on, y_on)
        run()
        assert (host.get(y_on, y, 32, np.uint32) == X + 1).all()
    with host.on(0) as driver:
        driver.context_disable_peer_access(host.contexts[1])
        fails_with("PEER_ACCESS_NOT_ENABLED", lambda: driver.context_disable_peer_access(host.contexts[1]))
    fails_with("ILLEGAL_ADDRESS", add_across(host, 1, 0)[1])


def test_memory_of_a_stream_ordered_pool_is_not_opened_by_peer_access() -> None:
    host = Host(2)
    with host.on(1) as driver:
        x = driver.mem_alloc_async(128, 0, "pooled")
        driver.memset_d8_async(x, 0, 128, 0)
        driver.stream_synchronize(0)
    function, y = host.load(0, ADD, "add"), host.put(0, X)
    error = fails_with("ILLEGAL_ADDRESS", lambda: launched(host, function, x, y))
    assert "pooled is memory of the stream-ordered pool of device 1" in error.explanation


def test_copies_between_devices_need_no_peer_access_but_fills_do() -> None:
    host = Host(2, peers=False)
    x, y = host.put(0, X), host.put(1, X * 0)
    with host.on(0) as driver:
        driver.memcpy_peer_async(y, host.contexts[1], x, host.contexts[0], 128, 0)
        driver.stream_synchronize(0)
        assert (host.get(1, y, 32, np.uint32) == X).all()
        driver.memcpy_dtod_async(y, x + 4, 64, 0)
        driver.stream_synchronize(0)
        assert (host.get(0, y, 16, np.uint32) == X[1:17]).all()
        wrong = (y, host.contexts[0], x, host.contexts[0], 128, 0)
        error = fails_with("INVALID_VALUE", lambda: driver.memcpy_peer_async(*wrong))
        assert "expected memory of device 0, got memory of device 1" in error.explanation
        fails_with("INVALID_VALUE", lambda: driver.memset_d8_async(y, 0, 128, 0))


def test_a_handle_opens_one_allocation_to_kernels_of_another_device() -> None:
    host = Host(2, peers=False)
    x, y = host.put(1, X, "x"), host.put(0, X * 0)
    with host.on(1) as driver:
        handle = driver.ipc_get_mem_handle(x)
        assert len(handle) == 64
        fails_with("INVALID_VALUE", lambda: driver.ipc_get_mem_handle(x + 4))
        pooled = driver.mem_alloc_async(128, 0)
        fails_with("INVALID_VALUE", lambda: driver.ipc_get_mem_handle(pooled))
    function = host.load(0, ADD, "add")
    with host.on(0) as driver:
        fails_with("INVALID_VALUE", lambda: driver.ipc_close_mem_handle(x))
        fails_with("INVALID_VALUE", lambda: driver.ipc_open_mem_handle(handle[:63]))
        fails_with("INVALID_VALUE", lambda: driver.ipc_open_event_handle(handle))
        opened = [driver.ipc_open_mem_handle(handle) for _ in range(2)]
        driver.ipc_close_mem_handle(opened[0])
    host.launch(0, function, opened[1], y, np.uint32(5))
    assert (host.get(0, y, 32, np.uint32) == X + 5).all()
    other = host.put(1, X, "other")
    with host.on(0) as driver:
        driver.ipc_close_mem_handle(opened[1])
    with host.on(1) as driver:
        driver.mem_free(x)
    with host.on(0) as driver:
        fails_with("INVALID_HANDLE", lambda: driver.ipc_open_mem_handle(handle))
    fails_with("ILLEGAL_ADDRESS", lambda: launched(host, function, other, y))


def test_an_event_is_known_to_others_by_its_handle() -> None:
    host = Host(2)
    with host.on(0) as driver:
        event = driver.event_create(EventFlags.INTERPROCESS | EventFlags.DISABLE_TIMING)
        plain = driver.event_create(EventFlags.DISABLE_TIMING)
        fails_with("INVALID_HANDLE", lambda: driver.ipc_get_event_handle(plain))
        handle = driver.ipc_get_event_handle(event)
    with host.on(1) as driver:
        opened = driver.ipc_open_event_handle(handle)
        assert opened != event
        driver.stream_wait_event(0, opened)
        driver.event_destroy(opened)
    with host.on(0) as driver:
        driver.event_record(event, 0)
        driver.event_synchronize(event)


def test_events_are_of_one_device_and_may_be_waited_for_on_another() -> None:
    host = Host(2)
    streams = [host.stream(device) for device in range(2)]
    with host.on(0) as driver:
        start = driver.event_create()
        driver.event_record(start, streams[0])
        fails_with("INVALID_HANDLE", lambda: driver.event_record(start, streams[1]))
    with host.on(1) as driver:
        driver.stream_wait_event(streams[1], start)
        end = driver.event_create()
        driver.event_record(end, streams[1])
        driver.event_synchronize(end)
        fails_with("INVALID_HANDLE", lambda: driver.event_elapsed_ms(start, end))


def test_a_kernel_runs_on_the_device_of_its_module_and_stream() -> None:
    host = Host(2)
    function, x = host.load(0, ADD, "add"), host.put(0, X)
    launch = host.prepare(0, function, (x, x, np.uint32(0)))
    other = host.stream(1)
    with host.on(1):
        fails_with("INVALID_HANDLE", lambda: launch(0))
    with host.on(0):
        assert "device 1" in fails_with("INVALID_HANDLE", lambda: launch(other)).explanation


def test_a_fault_breaks_one_device_only() -> None:
    host = Host(2)
    x = host.put(0, X[:31], "x")
    function = host.load(0, ADD, "add")
    with pytest.raises(DriverError, match="past the end of x"):
        launched(host, function, x, x)
    with host.on(0) as driver:
        fails_with("ILLEGAL_ADDRESS", lambda: driver.mem_alloc(16))
    assert (host.get(1, host.put(1, X), 32, np.uint32) == X).all()
    host.driver.primary_context_release(0)
    host.contexts[0] = host.driver.primary_context_retain(0)
    assert (host.get(0, host.put(0, X), 32, np.uint32) == X).all()


def test_memory_ends_with_its_device() -> None:
    host = Host(2)
    x, y = host.put(0, X, "x"), host.put(1, X)
    host.driver.primary_context_release(0)
    with host.on(1) as driver:
        assert driver.pointer_info(x) is None
        fails_with("INVALID_VALUE", lambda: driver.memcpy_dtod_async(y, x, 128, 0))
        fails_with("INVALID_CONTEXT", lambda: driver.context_enable_peer_access(host.contexts[0]))
