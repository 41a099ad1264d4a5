"""Host functions in streams and graphs: their order, what they must not do, and those that wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from lowdnn.driver.base import Driver, HostFunctions, HostWait
from lowdnn.driver.emulated.driver import EmulatedDriver
from tests.driver.emulated.devices.host import Host, fails_with
from tests.driver.emulated.devices.ring import ptx_of
from tests.driver.emulated.devices.test_waiting import POLICIES, Waiter


def functions_of(driver: Driver) -> HostFunctions:
    assert driver.host_functions is not None
    return driver.host_functions


def launch(
    host: Host, device: int, function: Callable[[], None], wait: HostWait | None = None, stream: int = 0
) -> None:
    with host.on(device) as driver:
        functions_of(driver).launch(stream, function, wait)


class Signal:
    """The condition of a host function, and the report that it was given up with."""

    def __init__(self, *, insists: bool = False) -> None:
        self.is_set = False
        self.report = ""
        self._insists = insists

    def set(self) -> None:
        self.is_set = True

    def wait(self, text: str = "for the signal") -> HostWait:
        return HostWait(lambda: self.is_set, lambda: text, self._give_up)

    def _give_up(self, report: str) -> None:
        self.report = report
        self.is_set = not self._insists


@pytest.mark.parametrize("devices", [1, 2])
def test_a_function_runs_between_the_work_before_and_behind_it(devices: int) -> None:
    host = Host(devices)
    seen: list[int] = []
    x = host.put(0, np.zeros(4, np.uint8))
    stream, taken = host.stream(0), np.zeros(4, np.uint8)
    with host.on(0) as driver:
        driver.memset_d8_async(x, 3, 4, stream)
        driver.memcpy_dtoh_async(taken.ctypes.data, x, 4, stream)
        functions_of(driver).launch(stream, lambda: seen.append(int(taken[0])))
        driver.memset_d8_async(x, 4, 4, stream)
        assert seen == ([3] if devices == 1 else [])
    assert (host.get(0, x, 4, np.uint8, stream) == 4).all()
    assert seen == [3]


@pytest.mark.parametrize("devices", [1, 2])
def test_nodes_of_graphs_run_at_each_launch(devices: int) -> None:
    """Captured, added one by one, and exchanged for another function."""
    host, seen = Host(devices), list[str]()
    with host.on(0) as given:
        driver = cast(EmulatedDriver, given)
        stream = driver.stream_create()
        driver.stream_begin_capture(stream)
        functions_of(driver).launch(stream, lambda: seen.append("captured"))
        graph = driver.stream_end_capture(stream)
        (first,) = driver.graph_nodes(graph)
        last = driver.graph_calls.add_host(graph, (first,), lambda: seen.append("added"))
        driver.stream_synchronize(stream)
        assert seen == []
        executable = driver.graph_instantiate(graph)
        driver.graph_calls.set_host(last, lambda: seen.append("exchanged"))
        fails_with("INVALID_VALUE", lambda: driver.graph_calls.set_fill(last, 0, 0, 0, 1))
        other = driver.graph_instantiate(graph)
        for one in (executable, executable, other):
            driver.graph_launch(one, stream)
        driver.stream_synchronize(stream)
    assert seen == ["captured", "added"] * 2 + ["captured", "exchanged"]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_function_must_not_call_the_driver(devices: int) -> None:
    """Whatever it calls; the context goes on behind the error."""
    host = Host(devices)
    driver = host.driver
    calls: list[Callable[[], object]] = [
        lambda: driver.mem_alloc(16),
        lambda: driver.stream_synchronize(0),
        lambda: functions_of(driver).launch(0, lambda: None),
        lambda: driver.context_set_current(host.contexts[0]),
        lambda: driver.primary_context_retain(0),
        lambda: driver.device_count(),
    ]
    for call in calls:
        failed = list[bool]()

        def tries(call: Callable[[], object] = call, failed: list[bool] = failed) -> None:
            fails_with("NOT_PERMITTED", call)
            failed.append(True)

        launch(host, 0, tries)
        host.synchronize(0)
        assert failed == [True]


@pytest.mark.parametrize("devices", [1, 2])
def test_what_a_function_raises_ends_the_work_behind_it_and_is_raised_once(devices: int) -> None:
    host, error, seen = Host(devices), ValueError("of a function"), list[str]()

    def fails() -> None:
        raise error

    stream = host.stream(0)
    with host.on(0) as driver:
        driver.stream_begin_capture(stream)
        functions_of(driver).launch(stream, fails)
        functions_of(driver).launch(stream, lambda: seen.append("behind"))
        executable = driver.graph_instantiate(driver.stream_end_capture(stream))

        def replay() -> None:
            driver.graph_launch(executable, stream)
            driver.stream_synchronize(stream)

        with pytest.raises(ValueError, match="of a function") as caught:
            replay()
        assert caught.value is error
        driver.stream_synchronize(stream)
    launch(host, 0, lambda: seen.append("later"))
    host.synchronize(0)
    assert seen == ["later"]


@pytest.mark.parametrize("policy", POLICIES)
def test_functions_of_two_devices_wait_for_each_other(policy: str) -> None:
    """Device 0 waits for device 1 and the other way round, three times, in streams beside a kernel that polls."""
    waiter = Waiter(policy)
    host, order = waiter.host, list[str]()
    streams = [host.stream(device) for device in range(2)]
    waiter.launch()
    for step in range(3):
        there, back = Signal(), Signal()

        def go(step: int = step, signal: Signal = there) -> None:
            order.append(f"go {step}")
            signal.set()

        def answer(step: int = step, signal: Signal = back) -> None:
            order.append(f"answer {step}")
            signal.set()

        launch(host, 0, go, stream=streams[0])
        launch(host, 1, answer, there.wait(), streams[1])
        launch(host, 0, lambda step=step: order.append(f"done {step}"), back.wait(), streams[0])  # type: ignore[misc]
    waiter.set_flag(streams[1])
    host.synchronize()
    waits = [f"{what} {step}" for step in range(3) for what in ("go", "answer", "done")]
    assert order == waits
    assert waiter.result == 1


@pytest.mark.parametrize("insists", [False, True])
def test_a_deadlock_names_kernels_and_functions(insists: bool) -> None:
    waiter, signal = Waiter(), Signal(insists=insists)
    waiter.launch()
    launch(waiter.host, 1, lambda: None, signal.wait("rank 1 for rank 0"))
    error = fails_with("LAUNCH_TIMEOUT", lambda: waiter.host.synchronize(0))
    function = "a host function on device 1 waits: rank 1 for rank 0"
    assert function in error.explanation
    assert "flag +0 bytes" in error.explanation
    assert signal.report.startswith("nothing can run: ")
    assert "kernel wait on device 0: " in signal.report
    assert function in signal.report
    if insists:
        error = fails_with("LAUNCH_TIMEOUT", lambda: waiter.host.synchronize(1))
        assert error.report["kind"] == "deadlock"
    else:
        waiter.host.synchronize(1)


@pytest.mark.parametrize("insists", [False, True])
def test_a_single_device_waits_in_the_call_until_its_time_is_up(insists: bool) -> None:
    host, signal, called = Host(1, "lockstep,timeout=0.2"), Signal(insists=insists), list[bool]()
    if insists:
        fails_with("LAUNCH_TIMEOUT", lambda: launch(host, 0, lambda: called.append(True), signal.wait("for ever")))
    else:
        launch(host, 0, lambda: called.append(True), signal.wait("for ever"))
    assert signal.report == "nothing can run: for ever"
    assert called == ([] if insists else [True])


@pytest.mark.parametrize("waits", [True, False])
def test_a_wait_orders_what_comes_behind_it(waits: bool) -> None:
    """A kernel of device 0 writes where a later one of device 1 reads: a race unless a host function has waited."""
    host, signal = Host(2, "lockstep,races"), Signal()
    x = host.put(0, np.zeros(32, np.uint32), "x")
    y = host.put(1, np.zeros(32, np.uint32), "y")
    bump = host.load(0, ptx_of(COPY), "bump")
    copy = host.load(1, ptx_of(COPY), "copy")
    streams = [host.stream(device) for device in range(2)]
    host.launch(0, bump, x, stream=streams[0])
    launch(host, 0, signal.set, stream=streams[0])
    launch(host, 1, lambda: None, signal.wait() if waits else None, streams[1])
    host.launch(1, copy, x, y, stream=streams[1])
    found = []
    for device in range(2):
        try:
            host.synchronize(device)
        except Exception as error:
            found.append(str(error))
    assert bool(found) != waits
    assert waits or "data-race" in found[0]
    if waits:
        assert (host.get(1, y, 32, np.uint32) == 1).all()


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(("function", "wait"), [(None, None), (3, None), (print, 3), (print, lambda: True)])
def test_what_is_no_function_or_wait_is_refused_at_once(devices: int, function: Any, wait: Any) -> None:
    host = Host(devices, "lockstep")
    fails_with("INVALID_VALUE", lambda: launch(host, 0, function, wait))
    host.synchronize(0)


COPY = """
extern "C" __global__ void bump(unsigned* x) { x[threadIdx.x] += 1; }
extern "C" __global__ void copy(const unsigned* x, unsigned* y) { y[threadIdx.x] = x[threadIdx.x]; }
"""
