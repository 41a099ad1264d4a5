"""Races between devices: kernels that exchange data with and without what orders it, under every policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest

from lowdnn.driver.base import DriverError, EventFlags
from lowdnn.driver.emulated.driver import EmulatedDriver
from tests.driver.emulated.devices.host import Host, faults_of
from tests.driver.emulated.devices.ring import GATHER, HEAD, RING, edited, ptx_of, run_gather, run_ring

POLICIES = ("lockstep", "cta-reverse", "warp-serial(7)", "fuzz(1)", "fuzz(5)", "lockstep,early", "fuzz(2),late")

#: Programs and their kernels without something that orders them.
MUTANTS: dict[str, tuple[Callable[[Host, str], None], str]] = {
    "release of scope gpu": (run_ring, edited(RING, ("st.release.sys", "st.release.gpu"))),
    "acquire of scope gpu": (run_ring, edited(RING, ("ld.acquire.sys", "ld.acquire.gpu"))),
    "no release": (run_ring, edited(RING, ("st.release.sys", "st.relaxed.sys"))),
    "no acquire": (run_ring, edited(RING, ("ld.acquire.sys", "ld.relaxed.sys"))),
    "flag before data": (
        run_ring,
        edited(
            RING,
            ("if (t == 0) release(next + slots * 32, epoch);\n", ""),
            ("next[slot + t] = held;", "if (t == 0) release(next + slots * 32, epoch);\n    next[slot + t] = held;"),
        ),
    ),
    "one slot less": (run_ring, edited(RING, ("epoch % slots", "epoch % (slots - 1)"))),
    "no wait": (run_ring, edited(RING, ("if (t == 0) while (acquire(own + slots * 32) < epoch);", ""))),
    "an epoch too early": (run_ring, edited(RING, ("< epoch);", "< epoch - 1);"))),
    "no fence before the flag": (run_gather, edited(GATHER, ("  fence();\n", ""))),
    "a fence of scope gpu": (
        run_gather,
        edited(GATHER, ("x[t];\n  fence();", 'x[t];\n  asm volatile("fence.acq_rel.gpu;" ::: "memory");')),
    ),
    "membar of scope gpu": (
        run_gather,
        edited(GATHER, ("x[t];\n  fence();", 'x[t];\n  asm volatile("membar.gl;" ::: "memory");')),
    ),
    "no fence behind the wait": (run_gather, edited(GATHER, ("== 0); fence(); }", "== 0); }"))),
    "a flag of scope gpu": (run_gather, edited(GATHER, ("atomicExch_system", "atomicExch"))),
    "a weak flag": (
        run_gather,
        edited(GATHER, ("atomicExch_system(theirs + size * 32 + rank, 1u)", "theirs[size * 32 + rank] = 1u")),
    ),
}


#: Numbers that a kernel writes, a flag, and a kernel that waits for it and copies the numbers.
STEPS = (
    HEAD
    + """
extern "C" __global__ void fill(u32* x, u32 value) { x[threadIdx.x] = value; }
extern "C" __global__ void set(u32* flag, u32 value) { if (threadIdx.x == 0) release(flag, value); }
extern "C" __global__ void take(u32* flag, const u32* x, u32* y) {
  if (threadIdx.x == 0) while (acquire(flag) == 0);
  __syncthreads();
  y[threadIdx.x] = x[threadIdx.x];
}
"""
)


class Steps:
    """Device 0 fills x and sets a flag; device 1 takes x into y, by a kernel that waits for the flag, or by a copy."""

    def __init__(self, source: str = STEPS, policy: str = "lockstep,races", taker: int = 1) -> None:
        self.host = host = Host(2, policy)
        self.taker = taker
        self.x = host.put(0, np.zeros(32, np.uint32), "x")
        self.y = host.put(taker, np.zeros(32, np.uint32), "y")
        self.flag = host.put(taker, np.zeros(1, np.uint32), "flag")
        self.streams = [host.stream(0), host.stream(taker)]
        self.functions = {name: host.load(0, ptx_of(source), name) for name in ("fill", "set")}
        self.functions["take"] = host.load(taker, ptx_of(source), "take")

    def fill(self, stream: int | None = None) -> None:
        stream = self.streams[0] if stream is None else stream
        self.host.launch(0, self.functions["fill"], self.x, np.uint32(7), stream=stream)

    def set(self) -> None:
        self.host.launch(0, self.functions["set"], self.flag, np.uint32(1), stream=self.streams[0])

    def take(self) -> None:
        self.host.launch(self.taker, self.functions["take"], self.flag, self.x, self.y, stream=self.streams[1])

    def copy(self) -> None:
        with self.host.on(self.taker) as driver:
            driver.memcpy_dtod_async(self.y, self.x, 128, self.streams[1])

    def wait(self) -> None:
        """The taker's stream waits for what device 0 has been given."""
        with self.host.on(0) as driver:
            event = driver.event_create(EventFlags.DISABLE_TIMING)
            driver.event_record(event, self.streams[0])
        with self.host.on(self.taker) as driver:
            driver.stream_wait_event(self.streams[1], event)

    def check(self) -> None:
        assert (self.host.get(self.taker, self.y, 32, np.uint32, self.streams[1]) == 7).all()

    def race(self) -> str:
        races = [one.explanation for one in faults_of(self.host) if one.report.get("kind") == "data-race"]
        assert len(races) == 1
        return races[0]


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_detector_is_content_with_what_is_ordered(policy: str, devices: int) -> None:
    run_ring(Host(devices, f"{policy},races"))
    run_gather(Host(devices, f"{policy},races"))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_reported(name: str, policy: str) -> None:
    run, source = MUTANTS[name]
    host = Host(2, f"{policy},races")
    with pytest.raises(DriverError) as caught:
        run(host, source)
    found = [caught.value, *faults_of(host)]
    races = [error for error in found if error.report.get("kind") == "data-race"]
    assert races, [str(error) for error in found]
    device = races[0].report["device"]
    assert f"on device {1 - int(str(device))} at PTX line" in races[0].explanation


def test_membar_sys_orders_as_a_fence_does() -> None:
    run_gather(Host(2, "fuzz(3),races"), edited(GATHER, ("fence.acq_rel.sys", "membar.sys")))


def test_a_copy_needs_an_event_of_the_device_that_writes() -> None:
    steps = Steps()
    steps.fill()
    steps.wait()
    steps.copy()
    steps.check()

    steps = Steps()
    steps.fill()
    steps.copy()
    text = (
        "nothing orders the read by a copy or fill on device 1 after the write by warp 0 of block (0, 0, 0) of kernel"
    )
    race = steps.race()
    assert f"{text} fill on device 0 at PTX line" in race
    assert race.endswith("= x +0 bytes")


def test_a_kernel_must_not_write_what_a_copy_may_still_read() -> None:
    steps = Steps(policy="cta-reverse,races")
    steps.copy()
    steps.fill()
    assert "nothing orders this write after the read by a copy or fill on device 1" in steps.race()


def test_the_host_orders_what_it_waits_for() -> None:
    steps = Steps()
    steps.fill()
    steps.host.synchronize(0)
    steps.copy()
    steps.check()
    steps.fill()
    assert steps.host.driver.context_get_current() == 0
    steps.host.synchronize(0)
    with steps.host.on(0) as driver:
        assert driver.stream_query(steps.streams[0])
    steps.copy()
    steps.check()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_release_hands_on_the_launches_before_its_own(policy: str) -> None:
    steps = Steps(policy=f"{policy},races")
    steps.take()
    steps.fill()
    steps.set()
    steps.check()

    steps = Steps(policy=f"{policy},races")
    steps.take()
    steps.set()
    steps.fill()
    assert "kernel" in steps.race()

    steps = Steps(policy=f"{policy},races")
    steps.take()
    steps.fill(steps.host.stream(0))
    steps.set()
    assert "kernel" in steps.race()


@pytest.mark.parametrize("behind", ["copy", "kernel", "host"])
def test_work_behind_a_kernel_that_has_waited_knows_what_it_knows(behind: str) -> None:
    steps = Steps()
    steps.fill()
    steps.set()
    steps.take()
    if behind == "host":
        with steps.host.on(1) as driver:
            driver.stream_synchronize(steps.streams[1])
            driver.memcpy_dtod_async(steps.y, steps.x, 128, steps.host.stream(1))
            driver.context_synchronize()
    elif behind == "copy":
        steps.copy()
    else:
        steps.take()
    steps.check()

    steps = Steps()
    steps.fill()
    steps.set()
    steps.take()
    with steps.host.on(1) as driver:
        driver.memcpy_dtod_async(steps.y, steps.x, 128, steps.host.stream(1))
    assert "by a copy or fill on device 1" in steps.race()


def test_scope_gpu_orders_launches_of_one_device() -> None:
    on_gpu = STEPS.replace(".sys", ".gpu")
    steps = Steps(on_gpu, taker=0)
    steps.take()
    steps.fill()
    steps.set()
    steps.check()

    steps = Steps(on_gpu)
    steps.take()
    steps.fill()
    steps.set()
    assert "flag" in steps.race()


def test_streams_of_one_device_need_an_event() -> None:
    steps = Steps(taker=0)
    steps.fill()
    steps.copy()
    assert "kernel fill on device 0" in steps.race()
    steps = Steps(taker=0)
    steps.fill()
    steps.wait()
    steps.copy()
    steps.check()


def test_records_are_forgotten_once_nothing_can_run_beside_them() -> None:
    steps = Steps()
    state = cast(EmulatedDriver, steps.host.driver)._context.state(0)
    assert state is not None
    records = state.system.queues._records
    assert records is not None
    for _ in range(3):
        steps.fill()
        steps.wait()
        steps.copy()
        assert records.launches == []
        steps.host.synchronize(1)
    steps.check()
    assert len(records.launches) == 0
    steps.fill()
    steps.host.synchronize()
    assert (records.launches, records.copies, records.locations) == ([], [], {})
