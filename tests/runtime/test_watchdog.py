"""Executes that do not end are named; those that wait for other work, are captured or have raised are not."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from lowdnn.config import Config
from lowdnn.driver import open_driver
from lowdnn.driver.base import DriverError
from lowdnn.driver.emulated.driver import EmulatedDriver
from lowdnn.enums import DataType
from lowdnn.plan import KernelRef, Launch, Plan, PlanTensor, Scalar, ScalarType, Struct, TensorPointer
from lowdnn.runtime import watchdog as watchdog_module
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream
from lowdnn.runtime.watchdog import Finding, Trouble, Watchdog
from tests.support.runtime import download, upload, write_sources

#: Each thread counts to ``turns`` without a store, then adds 1 to its number.
SOURCE = """
struct Params { unsigned* y; unsigned turns; };
extern "C" __global__ void KERNEL_NAME(const __grid_constant__ Params p) {
  unsigned turn = 0;
  do asm volatile("add.u32 %0, %0, 1;" : "+r"(turn)); while (turn < p.turns);
  p.y[blockIdx.x * blockDim.x + threadIdx.x] += 1;
}
"""
Y = 5
FOREVER = 2**32 - 1
BLOCKS, THREADS = 3, 64
COUNT = BLOCKS * THREADS
LIMIT_S = 0.1


def counting_plan(*turns: int) -> Plan:
    """A launch for each number of turns."""
    arguments = [Struct((TensorPointer(Y), Scalar(ScalarType.U32, turn))) for turn in turns]
    return Plan(
        engine="test_count",
        engine_index=0,
        graph_key=f"count {turns}",
        target_arch="sm_80",
        choices=(),
        kernels=(KernelRef("test_count_sm80", "pointwise/count.cu", "sm_80"),),
        launches=tuple(Launch(0, (BLOCKS, 1, 1), (THREADS, 1, 1), (one,)) for one in arguments),
        tensors=(PlanTensor(Y, "y", DataType.INT32, 4 * COUNT, 4, is_output=True),),
    )


@contextmanager
def opened(folder: Path, driver: Any = None, limit_s: float | None = LIMIT_S) -> Iterator[Runtime]:
    driver = driver or open_driver("emulated", arch="sm_80", policy="lockstep,timeout=1")
    driver.init()
    sources = write_sources(folder, {"pointwise/count.cu": SOURCE})
    with Runtime(driver, config=Config(disk_cache=False, watchdog_s=limit_s), sources=sources) as runtime:
        yield runtime


def watchdog_of(runtime: Runtime) -> Watchdog:
    assert runtime.watchdog is not None
    return runtime.watchdog


def eventually(is_true: Callable[[], object], seconds: float = 20.0) -> bool:
    end_s = time.monotonic() + seconds
    while not is_true() and time.monotonic() < end_s:
        time.sleep(0.01)
    return bool(is_true())


def troubles(runtime: Runtime) -> list[Trouble]:
    return [finding.trouble for finding in watchdog_of(runtime).findings]


def test_an_endless_kernel_is_named_with_the_places_of_its_blocks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as runtime, caplog.at_level(logging.ERROR, logger="lowdnn.watchdog"):
        buffer = upload(runtime, np.zeros(COUNT, np.uint32), "y")
        loaded = runtime.load(counting_plan(1, FOREVER, 1))
        loaded.command = lambda: "lowdnn run 'a case'"
        with pytest.raises(DriverError, match="ran out of time"):
            loaded.execute((buffer.address,))
        assert eventually(lambda: len(watchdog_of(runtime).findings) == 2)
        hang, fault = watchdog_of(runtime).findings
        assert runtime.counters.snapshot()["hangs"] == 1
    assert replace(hang, seconds=0.0, places="") == Finding(
        Trouble.HANG,
        0,
        "eng0_test_count",
        "test_count_sm80",
        2,
        3,
        "3x1x1",
        "64x1x1",
        0,
        command="lowdnn run 'a case'",
    )
    assert LIMIT_S <= hang.seconds < 1
    assert re.search(r"PTX line \d+: 192 threads in 6 warps run, of blocks ((, )?\(\d, 0, 0\)){3}$", hang.places)
    assert fault.trouble is Trouble.FAULT
    assert "CUDA_ERROR_LAUNCH_TIMEOUT" in fault.reason
    first, second = (record.getMessage() for record in caplog.records if record.name == "lowdnn.watchdog")
    assert first.startswith('hang device=0 plan=eng0_test_count kernel=test_count_sm80 launch="2 of 3" grid=3x1x1')
    assert "repeat=\"lowdnn run 'a case'\"" in first
    assert second.startswith("device_fault device=0")


def test_one_that_ends_after_all_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as runtime, caplog.at_level(logging.WARNING, logger="lowdnn.watchdog"):
        buffer = upload(runtime, np.zeros(COUNT, np.uint32), "y")
        turns, seconds = 10_000, 0.0
        while seconds < 3 * LIMIT_S:  # until the plan is slow enough on this machine
            turns *= 2
            loaded = runtime.load(counting_plan(turns))
            begin_s = time.monotonic()
            loaded.execute((buffer.address,))
            seconds = time.monotonic() - begin_s
        assert eventually(lambda: any("hang_over" in record.getMessage() for record in caplog.records))
        assert set(troubles(runtime)) == {Trouble.HANG}
        assert download(buffer, np.uint32).min() >= 1


def test_executes_that_end_are_not_named(device: Runtime, tmp_path: Path) -> None:
    with opened(tmp_path, device.driver, limit_s=0.08) as runtime:
        buffer = upload(runtime, np.zeros(COUNT, np.uint32), "y")
        loaded = runtime.load(counting_plan(1, 1))
        context = runtime.context
        with Stream.create(context) as one, Stream.create(context) as two:
            end_s, executes = time.monotonic() + 0.3, 0
            while time.monotonic() < end_s:
                loaded.execute((buffer.address,), 0, (one.handle, two.handle, 0)[executes % 3])
                executes += 1
            context.synchronize()
            assert eventually(lambda: not any(lane.marks for lane in watchdog_of(runtime)._lanes.values()))
        assert troubles(runtime) == []


def test_captures_are_left_alone(device: Runtime, tmp_path: Path) -> None:
    with opened(tmp_path, device.driver, limit_s=0.08) as runtime:
        buffer = upload(runtime, np.zeros(COUNT, np.uint32), "y")
        loaded = runtime.load(counting_plan(1))
        loaded.execute((buffer.address,))
        context, driver = runtime.context, runtime.driver
        with Stream.create(context) as stream, context.activated():
            stream.begin_capture()
            loaded.execute((buffer.address,), 0, stream.handle)
            assert not watchdog_of(runtime)._lanes[stream.handle, 0].marks
            time.sleep(0.15)  # the thread looks meanwhile
            graph = stream.end_capture()
            graph_exec = driver.graph_instantiate(graph)
            assert len(driver.graph_nodes(graph)) == 1
            driver.graph_launch(graph_exec, stream.handle)
            stream.synchronize()
            driver.graph_exec_destroy(graph_exec)
            driver.graph_destroy(graph)
        assert (download(buffer, np.uint32) == 2).all()
        assert troubles(runtime) == []


class Gated(EmulatedDriver):
    """Events happen for those who only look once ``happened`` has them."""

    def __init__(self) -> None:
        super().__init__("sm_80")
        self.happened: set[int] = set()
        self.recorded: list[int] = []

    def event_record(self, event: int, stream: int) -> None:
        super().event_record(event, stream)
        self.happened.discard(event)
        self.recorded.append(event)

    def event_peek(self, event: int, context: int) -> bool:
        return event in self.happened


def test_a_stream_that_waits_for_other_work_is_no_hang(tmp_path: Path) -> None:
    driver = Gated()
    with opened(tmp_path, driver) as runtime:
        buffer = upload(runtime, np.zeros(COUNT, np.uint32), "y")
        runtime.load(counting_plan(1, 1)).execute((buffer.address,))
        before, between, behind = driver.recorded
        time.sleep(3 * LIMIT_S)
        assert troubles(runtime) == []
        driver.happened.add(before)
        assert eventually(lambda: troubles(runtime))
        assert watchdog_of(runtime).findings[-1].launch == 1
        driver.happened |= {between, behind}
        assert eventually(lambda: not any(lane.marks for lane in watchdog_of(runtime)._lanes.values()))
        assert troubles(runtime) == [Trouble.HANG]


def test_each_stream_has_its_oldest_execute_named_once(tmp_path: Path) -> None:
    driver = Gated()
    with opened(tmp_path, driver) as runtime:
        buffer = upload(runtime, np.zeros(COUNT, np.uint32), "y")
        loaded, other = runtime.load(counting_plan(1)), runtime.load(counting_plan(2))
        with Stream.create(runtime.context) as one, Stream.create(runtime.context) as two:
            for stream in (one, two):
                for plan in (loaded, other):
                    plan.execute((buffer.address,), 0, stream.handle)
            driver.happened |= set(driver.recorded[:1] + driver.recorded[4:7])
            assert eventually(lambda: len(troubles(runtime)) == 2)
            time.sleep(3 * LIMIT_S)
            found = {(finding.stream, finding.launch) for finding in watchdog_of(runtime).findings}
            assert found == {(one.handle, 1), (two.handle, 1)}
            assert len(watchdog_of(runtime).findings) == 2


def test_the_oldest_marks_are_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog_module, "_MOST_MARKS", 4)
    driver = Gated()
    with opened(tmp_path, driver, limit_s=60) as runtime:
        buffer = upload(runtime, np.zeros(COUNT, np.uint32), "y")
        loaded = runtime.load(counting_plan(1))
        for _ in range(50):
            loaded.execute((buffer.address,))
        assert len(set(driver.recorded)) == 8


@pytest.mark.parametrize("which", ["launch:1=OUT_OF_MEMORY", "event_record:2=INVALID_HANDLE", "event_create:2=UNKNOWN"])
def test_an_execute_that_raised_or_has_no_marks_is_no_hang(tmp_path: Path, which: str) -> None:
    driver = open_driver("emulated", arch="sm_80", faults=which)
    with opened(tmp_path, driver) as runtime:
        buffer = upload(runtime, np.zeros(COUNT, np.uint32), "y")
        loaded = runtime.load(counting_plan(1))
        if which.startswith("launch"):
            with pytest.raises(DriverError, match="OUT_OF_MEMORY"):
                loaded.execute((buffer.address,))
            time.sleep(3 * LIMIT_S)
        loaded.execute((buffer.address,))
        loaded.execute((buffer.address,))
        time.sleep(3 * LIMIT_S)
        assert troubles(runtime) == []
        assert (download(buffer, np.uint32) == 2).all()


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ("ILLEGAL_ADDRESS", [Trouble.FAULT]),
        ("LAUNCH_FAILED", [Trouble.FAULT]),
        ("ECC_UNCORRECTABLE", [Trouble.LOST]),
        ("CONTEXT_IS_DESTROYED", [Trouble.LOST]),
        ("UNKNOWN", [Trouble.LOST]),
        ("INVALID_VALUE", []),
    ],
)
def test_faults_and_losses_are_told_apart_once(tmp_path: Path, result: str, told: list[Trouble]) -> None:
    driver = open_driver("emulated", arch="sm_80", faults=f"event_peek:*={result}")
    with opened(tmp_path, driver) as runtime:
        buffer = upload(runtime, np.zeros(COUNT, np.uint32), "y")
        loaded = runtime.load(counting_plan(1))
        for _ in range(3):
            loaded.execute((buffer.address,))
            time.sleep(0.5 * LIMIT_S)
        assert eventually(lambda: troubles(runtime) == told)
        for finding in watchdog_of(runtime).findings:
            assert result in finding.reason
            assert finding.plan == "eng0_test_count"


def test_queued_work_of_several_devices_is_no_hang_and_is_not_run_by_the_watchdog(tmp_path: Path) -> None:
    driver = open_driver("emulated", arch="sm_80", policy="lockstep,devices=2")
    with opened(tmp_path, driver) as runtime:
        buffer = upload(runtime, np.zeros(COUNT, np.uint32), "y")
        runtime.load(counting_plan(1)).execute((buffer.address,))
        time.sleep(3 * LIMIT_S)
        (lane,) = watchdog_of(runtime)._lanes.values()
        assert len(lane.marks) == 1
        runtime.context.synchronize()
        assert eventually(lambda: not lane.marks)
        assert troubles(runtime) == []


def test_closing_ends_the_thread_and_gives_events_back(tmp_path: Path) -> None:
    driver = cast(EmulatedDriver, open_driver("emulated", arch="sm_80"))
    with opened(tmp_path, driver) as runtime:
        buffer = upload(runtime, np.zeros(COUNT, np.uint32), "y")
        loaded = runtime.load(counting_plan(1))
        loaded.execute((buffer.address,))
        state = driver._context.state(0)
        assert state is not None
        assert len(state.events) == 2
        watchdog_of(runtime).close()
        watchdog_of(runtime).close()
        assert not state.events
        assert not [thread for thread in threading.enumerate() if thread.name == "lowdnn watchdog"]
        loaded.execute((buffer.address,))
        assert not state.events


def test_a_runtime_that_is_dropped_ends_its_thread(tmp_path: Path) -> None:
    with opened(tmp_path) as runtime:
        runtime.load(counting_plan(1))
        runtime.watchdog = None
        assert eventually(lambda: "lowdnn watchdog" not in [thread.name for thread in threading.enumerate()])


def test_a_child_of_fork_watches_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as runtime:
        buffer = upload(runtime, np.zeros(COUNT, np.uint32), "y")
        runtime.load(counting_plan(1)).execute((buffer.address,))
        child = os.fork()
        if not child:
            is_still = not watchdog_of(runtime)._is_watching and threading.active_count() == 1
            watchdog_of(runtime).close()
            os._exit(0 if is_still else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert watchdog_of(runtime)._is_watching


def test_without_a_watchdog_an_execute_is_its_launches(tmp_path: Path) -> None:
    with opened(tmp_path, limit_s=None) as runtime:
        assert runtime.watchdog is None
        assert len(runtime.load(counting_plan(1, 1))._steps) == 2
