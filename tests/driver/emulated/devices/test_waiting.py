"""Kernels of several devices that wait for each other, and work in the queues of their streams."""

from __future__ import annotations

import re
import threading
import time

import numpy as np
import pytest

from lowdnn.driver.base import DriverError, EventFlags, StreamFlags
from tests.driver.emulated.devices.host import Host, fails_with
from tests.driver.emulated.devices.ring import ptx_of, run_gather, run_ring

POLICIES = ("lockstep", "cta-reverse", "warp-serial(7)", "fuzz(1)", "fuzz(5)", "lockstep,early", "fuzz(2),late")


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_devices_exchange_data_through_mailboxes(policy: str, devices: int) -> None:
    run_ring(Host(devices, policy))
    run_gather(Host(devices, policy))


#: Waits until *flag is not 0, then adds one to each of 32 numbers; or sets the flag.
KERNELS = """
extern "C" __global__ void wait(volatile unsigned* flag, unsigned* x) {
  if (threadIdx.x == 0) while (*flag == 0);
  __syncthreads();
  x[threadIdx.x] += 1;
}
extern "C" __global__ void set(volatile unsigned* flag) { *flag = 1; __threadfence_system(); }
extern "C" __global__ void give_up(volatile unsigned* flag, unsigned* x) {
  unsigned tries = 0;
  while (*flag == 0 && tries < 500) tries++;
  x[threadIdx.x] = tries;
}
"""


class Waiter:
    """A kernel of device 0 that waits for a flag of device 1."""

    def __init__(self, policy: str = "lockstep", kernel: str = "wait") -> None:
        self.host = Host(2, policy)
        self.flag = self.host.put(1, np.zeros(1, np.uint32), "flag")
        self.x = self.host.put(0, np.zeros(32, np.uint32), "x")
        self.wait = self.host.load(0, ptx_of(KERNELS), kernel)
        self.set = self.host.load(1, ptx_of(KERNELS), "set")

    def launch(self, stream: int = 0) -> None:
        self.host.launch(0, self.wait, self.flag, self.x, stream=stream)

    def set_flag(self, stream: int = 0) -> None:
        self.host.launch(1, self.set, self.flag, block=1, stream=stream)

    @property
    def result(self) -> int:
        values = set(self.host.get(0, self.x, 32, np.uint32).tolist())
        assert len(values) == 1
        return int(values.pop())


def test_work_waits_until_the_host_waits_for_it() -> None:
    waiter = Waiter()
    stream = waiter.host.stream(0)
    waiter.launch(stream)
    waiter.launch(stream)
    with waiter.host.on(0) as driver:
        event = driver.event_create()
        driver.event_record(event, stream)
        assert not driver.stream_query(stream)
        assert not driver.event_query(event)
        fails_with("NOT_READY", lambda: driver.event_elapsed_ms(event, event))
        assert driver.stream_query(0), "another stream of the device goes on"
    waiter.set_flag()
    with waiter.host.on(0) as driver:
        assert driver.event_query(event)
        assert driver.stream_query(stream)
        driver.event_synchronize(event)
    assert waiter.result == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_launches_of_several_streams_interleave(policy: str) -> None:
    waiter = Waiter(policy)
    streams = [waiter.host.stream(0) for _ in range(3)]
    for stream in streams[:2]:
        waiter.launch(stream)
    waiter.host.launch(0, waiter.host.load(0, ptx_of(KERNELS), "set"), waiter.flag, block=1, stream=streams[2])
    waiter.host.synchronize(0)
    assert waiter.result == 2


def test_a_stream_waits_for_an_event_of_another_device() -> None:
    waiter = Waiter()
    here, there = waiter.host.stream(0), waiter.host.stream(1)
    y = waiter.host.put(1, np.zeros(32, np.uint32), "y")
    waiter.launch(here)
    with waiter.host.on(0) as driver:
        event = driver.event_create(EventFlags.DISABLE_TIMING)
        driver.event_record(event, here)
    with waiter.host.on(1) as driver:
        driver.stream_wait_event(there, event)
        driver.memcpy_peer_async(y, waiter.host.contexts[1], waiter.x, waiter.host.contexts[0], 128, there)
        assert not driver.stream_query(there)
    waiter.set_flag()
    assert (waiter.host.get(1, y, 32, np.uint32, there) == 1).all()


def test_the_legacy_stream_waits_for_blocking_ones() -> None:
    waiter = Waiter()
    with waiter.host.on(0) as driver:
        blocking, free = driver.stream_create(StreamFlags.DEFAULT), driver.stream_create(StreamFlags.NON_BLOCKING)
    waiter.launch(blocking)
    with waiter.host.on(0) as driver:
        assert driver.stream_query(free)
        assert driver.stream_query(0), "nothing is in the legacy stream yet"
        driver.memset_d8_async(waiter.x, 0, 128, 0)
        driver.memset_d8_async(waiter.x, 7, 0, free)
        assert not driver.stream_query(0)
        assert driver.stream_query(free)
    waiter.set_flag()
    assert waiter.result == 0


def test_copies_from_the_host_read_it_when_they_are_called() -> None:
    waiter = Waiter()
    sent = np.full(32, 5, np.uint32)
    waiter.launch()
    with waiter.host.on(0) as driver:
        driver.memcpy_htod_async(waiter.x, sent.ctypes.data, 128, 0)
    sent[:] = 9
    waiter.set_flag()
    assert waiter.result == 5


def test_a_loop_that_counts_may_give_up() -> None:
    waiter = Waiter(kernel="give_up")
    waiter.launch()
    assert waiter.result == 500


@pytest.mark.parametrize("policy", ["lockstep", "cta-reverse", "warp-serial(3)", "fuzz(4)"])
def test_a_deadlock_names_all_that_wait(policy: str) -> None:
    waiter = Waiter(policy)
    other = waiter.host.put(0, np.zeros(4, np.uint32), "other")
    waiter.launch()
    waits = waiter.host.load(1, ptx_of(KERNELS), "wait")
    waiter.host.launch(1, waits, other + 8, waiter.host.put(1, np.zeros(32, np.uint32)))
    error = fails_with("LAUNCH_TIMEOUT", lambda: waiter.host.synchronize(0))
    text = error.explanation
    assert text.startswith("deadlock: nothing can run: ")
    assert f"for a value that nobody stores at {waiter.flag:#x} = flag +0 bytes (PTX line" in text
    there = "kernel wait on device 1: .*1 threads of 1 warps wait for a value that nobody stores at"
    assert re.search(f"{there} {other + 8:#x} = other .8 bytes", text)
    assert "  kernel wait on device 0\n" in text
    assert (error.report["device"], error.report["buffer"]) == (0, "flag")
    error = fails_with("LAUNCH_TIMEOUT", lambda: waiter.host.synchronize(1))
    assert (error.report["device"], error.report["buffer"]) == (1, "other")
    with waiter.host.on(1) as driver:
        assert (
            "since cuCtxSynchronize: deadlock" in fails_with("LAUNCH_TIMEOUT", lambda: driver.mem_alloc(1)).explanation
        )


def test_a_device_that_fails_is_named_where_others_wait_for_it() -> None:
    waiter = Waiter()
    waiter.launch()
    waiter.host.launch(1, waiter.set, waiter.flag + 4, block=1)
    error = fails_with("LAUNCH_TIMEOUT", lambda: waiter.host.synchronize(0))
    assert "device 1 has failed: out-of-bounds: 4 bytes" in error.explanation
    fails_with("ILLEGAL_ADDRESS", lambda: waiter.host.synchronize(1))


def test_a_stream_of_another_device_tells_its_fault() -> None:
    waiter = Waiter()
    stream = waiter.host.stream(1)
    waiter.host.launch(1, waiter.set, waiter.flag + 4, block=1, stream=stream)
    with waiter.host.on(0) as driver:
        fails_with("ILLEGAL_ADDRESS", lambda: driver.stream_synchronize(stream))
        driver.stream_synchronize(0)
        driver.mem_alloc(16)
    with waiter.host.on(1) as driver:
        fails_with("ILLEGAL_ADDRESS", lambda: driver.mem_alloc(16))


def test_freeing_waits_for_the_device() -> None:
    waiter = Waiter()
    stream = waiter.host.stream(0)
    with waiter.host.on(0) as driver:
        pooled = driver.mem_alloc_async(128, stream)
        driver.memcpy_dtod_async(waiter.x, pooled, 0, stream)
    waiter.launch(stream)
    with waiter.host.on(0) as driver:
        driver.mem_free_async(pooled, stream)
        assert driver.pointer_info(pooled) is not None, "it is freed in the order of the stream"
    waiter.set_flag()
    with waiter.host.on(0) as driver:
        driver.mem_free(waiter.x)
        assert driver.stream_query(stream)
        assert driver.pointer_info(pooled) is None


def test_a_device_may_be_given_back_with_work_in_its_queue() -> None:
    waiter = Waiter()
    waiter.launch()
    waiter.host.driver.primary_context_release(0)
    waiter.host.synchronize(1)
    waiter.host.contexts[0] = waiter.host.driver.primary_context_retain(0)
    assert (waiter.host.get(0, waiter.host.put(0, np.ones(4, np.uint32)), 4, np.uint32) == 1).all()


def test_graphs_of_several_devices_wait_for_each_other() -> None:
    waiter = Waiter()
    streams = [waiter.host.stream(device) for device in range(2)]
    graphs = []
    for device, launch in enumerate((waiter.launch, waiter.set_flag)):
        with waiter.host.on(device) as driver:
            driver.stream_begin_capture(streams[device])
            launch(streams[device])
            launch(streams[device])
            graphs.append(driver.graph_instantiate(driver.stream_end_capture(streams[device])))
    for device, graph in enumerate(graphs):
        with waiter.host.on(device) as driver:
            driver.graph_launch(graph, streams[device])
    waiter.host.synchronize()
    assert waiter.result == 2


def in_thread(run: threading.Thread) -> threading.Thread:
    run.start()
    return run


def test_a_thread_waits_for_another_one_that_may_still_launch() -> None:
    waiter = Waiter("lockstep,timeout=5")
    failures: list[DriverError] = []

    def set_late() -> None:
        with waiter.host.on(1):
            time.sleep(0.2)
        waiter.set_flag()
        waiter.host.synchronize(1)

    def wait() -> None:
        waiter.launch()
        try:
            waiter.host.synchronize(0)
        except DriverError as error:
            failures.append(error)

    threads = [in_thread(threading.Thread(target=run)) for run in (set_late, wait)]
    for thread in threads:
        thread.join()
    assert failures == []
    assert waiter.result == 1


def test_threads_that_all_wait_are_a_deadlock_at_once() -> None:
    waiter = Waiter("lockstep,timeout=60")
    other = waiter.host.put(0, np.zeros(1, np.uint32), "other")
    there = waiter.host.load(1, ptx_of(KERNELS), "wait")
    names = []

    def wait(device: int) -> None:
        if device == 0:
            waiter.launch()
        else:
            waiter.host.launch(1, there, other, waiter.host.put(1, np.zeros(32, np.uint32)))
        try:
            waiter.host.synchronize(device)
        except DriverError as error:
            names.append(error.name)

    start = time.monotonic()
    threads = [in_thread(threading.Thread(target=wait, args=(device,))) for device in range(2)]
    for thread in threads:
        thread.join()
    assert names == ["CUDA_ERROR_LAUNCH_TIMEOUT"] * 2
    assert time.monotonic() - start < 30


def test_threads_whose_kernels_meet_again_and_again() -> None:
    """A thread whose work is done counts as one that may add more, also before it has noticed."""
    source = """
    extern "C" __global__ void meet(unsigned* theirs, volatile unsigned* own, unsigned epoch) {
      asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(theirs), "r"(epoch) : "memory");
      while (*own < epoch);
    }
    """
    host = Host(2)
    flags = [host.put(device, np.zeros(1, np.uint32), f"flag {device}") for device in range(2)]
    functions = [host.load(device, ptx_of(source), "meet") for device in range(2)]
    errors: list[DriverError] = []
    both_are_there = threading.Barrier(2)

    def work(device: int) -> None:
        host.driver.context_set_current(host.contexts[device])
        both_are_there.wait()
        try:
            for epoch in range(1, 41):
                own, theirs = flags[device], flags[1 - device]
                host.launch(device, functions[device], theirs, own, np.uint32(epoch), block=1)
                host.synchronize(device)
        except DriverError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(device,)) for device in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
