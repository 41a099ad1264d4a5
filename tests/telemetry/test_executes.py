"""Executes that are counted and timed: off, on, in captures, after errors, in threads, and without growth."""

from __future__ import annotations

import gc
import os
import pickle
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from lowdnn import telemetry
from lowdnn.driver.base import CaptureMode, DriverError
from lowdnn.driver.fault_injection import with_faults
from lowdnn.observer import introduce
from lowdnn.runtime.context import Context
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.stream import Stream
from lowdnn.status import AttributeTypeError, BadParamError, NotInitializedError
from lowdnn.telemetry import Histogram, measures
from lowdnn.telemetry.device_clock import MOST_PAIRS
from lowdnn.telemetry.executes import WatchedPlan, gaps
from tests.telemetry.conftest import Program, opened_program, value_of

LABELS = "scale", "test_scale"


@pytest.fixture
def stubbed(tmp_path: Path) -> Iterator[Program]:
    found = opened_program(tmp_path, is_stubbed=True)
    with found.runtime:
        yield found


def test_a_plan_that_nobody_watches_has_its_own_class_and_steps(program: Program) -> None:
    code = LoadedPlan.execute.__code__.co_code
    program.run()
    before = dict(vars(program.loaded))
    with telemetry.enable(sample=1.0):
        assert type(program.loaded) is WatchedPlan
        program.run(3)
    assert type(program.loaded) is LoadedPlan
    assert LoadedPlan.execute.__code__.co_code == code
    after = vars(program.loaded)
    assert {name: after[name] for name in before} == before, "what an execute reads is what it was"
    program.run(2)
    assert value_of(measures.EXECUTES, *LABELS) == 3


def test_every_execute_is_counted_and_some_are_timed(program: Program) -> None:
    with telemetry.enable(sample=1.0):
        program.run(20)
        program.synchronize()
        assert value_of(measures.EXECUTES, *LABELS) == 20
        assert value_of(measures.KERNEL_SECONDS, *LABELS) == 20
        assert value_of(measures.EXECUTE_HOST_SECONDS, "scale") == 20
        program.run(20)
        assert program.events == 40, "a pair that is read serves a later execute"
        lines = telemetry.summary().splitlines()
        assert lines[1].split()[:3] == ["scale", "test_scale", "40"]
    assert program.events == 0


def test_times_are_the_seconds_between_the_events(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program.runtime.driver, "event_elapsed_ms", lambda start, end: 2.0)
    with telemetry.enable(sample=1.0):
        program.run(3)
        program.synchronize()
        (family,) = [one for one in telemetry.collect() if one.measure is measures.KERNEL_SECONDS]
    (value,) = [sample.value for sample in family.samples]
    assert isinstance(value, Histogram)
    assert value.total == pytest.approx(6e-3)
    assert 1e-3 <= value.quantile(0.5) <= 2e-3


def test_plans_loaded_while_it_is_on_are_watched_too(tmp_path: Path) -> None:
    with telemetry.enable(sample=0.0):
        program = opened_program(tmp_path)
        with program.runtime:
            program.run(5)
    assert value_of(measures.EXECUTES, *LABELS) == 5
    assert value_of(measures.KERNEL_SECONDS, *LABELS) == 0


@pytest.mark.parametrize("mode", list(CaptureMode))
def test_a_capture_gets_launches_alone_and_survives_a_reading(program: Program, mode: CaptureMode) -> None:
    driver = program.runtime.driver
    with telemetry.enable(sample=1.0), Stream.create(program.runtime.context) as stream:
        program.run(2, stream.handle)
        with program.runtime.context.activated():
            driver.stream_begin_capture(stream.handle, mode)
            program.run(3, stream.handle)
            telemetry.collect()
            graph = driver.stream_end_capture(stream.handle)
            assert len(driver.graph_nodes(graph)) == 3
            driver.graph_destroy(graph)
        program.synchronize()
        assert value_of(measures.KERNEL_SECONDS, *LABELS) == 2
        assert value_of(measures.EXECUTE_HOST_SECONDS, "scale") == 2
        assert value_of(measures.EXECUTES, *LABELS) == 5, "the calls, those into the capture included"


def test_the_values_of_a_closed_runtime_stay(tmp_path: Path) -> None:
    program = opened_program(tmp_path)
    with telemetry.enable(sample=1.0):
        with program.runtime:
            program.run(4)
            state = program.runtime.driver._context.state(0)  # type: ignore[attr-defined]
            program.synchronize()
            assert len(state.events) == 8
            for buffer in program.kept[:2]:
                buffer.close()  # type: ignore[attr-defined]
        assert not state.events
        assert program.runtime.driver._context.state(0) is None, "nothing keeps the context"  # type: ignore[attr-defined]
        assert value_of(measures.EXECUTES, *LABELS) == 4
        assert value_of(measures.KERNEL_SECONDS, *LABELS) == 4, "what was over is read at the end"
        assert value_of(measures.BUFFER_BYTES) == 0
        with pytest.raises(NotInitializedError):
            program.run()


def test_a_context_that_is_collected_takes_its_events_along(tmp_path: Path) -> None:
    program = opened_program(tmp_path)
    with telemetry.enable(sample=1.0):
        program.run(4)
        other = program.runtime.driver
        other.primary_context_retain(0)
        state = other._context.state(0)  # type: ignore[attr-defined]
        assert len(state.events) == 8
        del program
        gc.collect()
        assert not state.events
        other.primary_context_release(0)


def test_an_execute_that_fails_is_not_counted(program: Program) -> None:
    with telemetry.enable(sample=1.0):
        program.run(2)
        with pytest.raises(BadParamError):
            program.loaded.execute((1, 2), 0, 0)
        program.run(1)
        program.synchronize()
        assert value_of(measures.EXECUTES, *LABELS) == 3
        assert value_of(measures.KERNEL_SECONDS, *LABELS) == 3


@pytest.mark.parametrize("call", ["event_create", "event_record", "event_query", "stream_is_capturing"])
def test_a_driver_that_refuses_events_costs_the_sample_alone(
    program: Program, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = getattr(with_faults(program.runtime.driver, f"{call}:*=UNKNOWN"), call)
    with telemetry.enable(sample=1.0):
        monkeypatch.setattr(program.runtime.driver, call, failing)
        program.run(3)
        assert value_of(measures.EXECUTES, *LABELS) == 3
        assert value_of(measures.KERNEL_SECONDS, *LABELS) == 0
        monkeypatch.undo()
        program.run(2)
        program.synchronize()
        assert value_of(measures.KERNEL_SECONDS, *LABELS) == 2


def test_events_are_bounded_where_nobody_reads_them(stubbed: Program) -> None:
    with telemetry.enable(sample=1.0, interval_s=1000):
        stubbed.run(MOST_PAIRS + 50)
        assert stubbed.events == 2 * MOST_PAIRS
        stubbed.synchronize()
        assert value_of(measures.KERNEL_SECONDS, *LABELS) == MOST_PAIRS
        assert value_of(measures.EXECUTES, *LABELS) == MOST_PAIRS + 50
    assert stubbed.events == 0


def test_threads_execute_while_it_is_turned_on_and_off(stubbed: Program) -> None:
    is_over = Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not is_over.is_set():
                stubbed.run(10)
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        with telemetry.enable(sample=0.3):
            before = value_of(measures.EXECUTES, *LABELS)
            while value_of(measures.EXECUTES, *LABELS) < before + 100:
                assert not failures
    is_over.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert stubbed.events == 0


def test_threads_lose_no_execute(stubbed: Program) -> None:
    with telemetry.enable(sample=0.3):
        threads = [Thread(target=stubbed.run, args=(1000,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert value_of(measures.EXECUTES, *LABELS) == 3000


def test_several_devices_and_runtimes_are_counted_together(tmp_path: Path) -> None:
    with telemetry.enable(sample=1.0):
        programs = [
            opened_program(tmp_path / str(place), device=device, policy="lockstep,devices=2")
            for place, device in enumerate((0, 1, 1))
        ]
        for times, program in enumerate(programs, 1):
            program.run(times)
            program.synchronize()
        assert value_of(measures.EXECUTES, *LABELS) == 6
        assert value_of(measures.KERNEL_SECONDS, *LABELS) == 6
        assert value_of(measures.BUFFER_BYTES) == 6 * 256
        assert {value_of(measures.TOTAL_BYTES, f"emulated:{device}") > 0 for device in (0, 1)} == {True}
        for program in programs:
            program.runtime.close()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_child_of_fork_begins_with_telemetry_off(program: Program, tmp_path: Path) -> None:
    with telemetry.enable(sample=1.0):
        program.run(2)
        child = os.fork()
        if not child:
            status = 1
            try:
                status = _child(program, tmp_path / "child")
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        program.run(1)
        assert value_of(measures.EXECUTES, *LABELS) == 3


def _child(program: Program, folder: Path) -> int:
    """0 where the child counts its own executes and none of its parent's."""
    if telemetry.is_enabled() or value_of(measures.EXECUTES, *LABELS):
        return 2
    try:
        program.run()
        return 3
    except NotInitializedError:
        pass
    with telemetry.enable(sample=1.0):
        own = opened_program(folder, is_stubbed=True)
        own.run(5)
        return 0 if value_of(measures.EXECUTES, *LABELS) == 5 else 4


def test_what_belongs_to_the_process_is_not_pickled(program: Program) -> None:
    with telemetry.enable(sample=1.0) as enabled:
        for bound in (program.loaded, enabled):
            with pytest.raises(AttributeTypeError, match="expected an object that may be copied or pickled"):
                pickle.dumps(bound)
    families = telemetry.collect()
    assert pickle.loads(pickle.dumps(families)) == families


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
def test_a_share_of_the_executes_is_timed_at_changing_distances(share: float) -> None:
    gap = gaps(share)
    drawn = [gap() for _ in range(20_000)]
    assert min(drawn) >= 1
    # The mean of so many draws is off by 4 % with a probability below one in ten million.
    assert 0.96 < len(drawn) / (share * sum(drawn)) < 1.04
    assert len(set(drawn)) > 5


def test_all_or_no_execute_is_timed() -> None:
    assert gaps(1.0)() == 1
    assert gaps(0.0)() > 2**62
    assert gaps(1e-12)() > 1000


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"sample": 1.5}, "telemetry.enable.sample: expected 0 to 1, got 1.5"),
        ({"sample": float("nan")}, "telemetry.enable.sample: expected 0 to 1, got nan"),
        ({"interval_s": 0}, "telemetry.enable.interval_s: expected more than 0, got 0"),
    ],
)
def test_other_options_are_refused(options: dict[str, float], rule: str) -> None:
    with pytest.raises(BadParamError, match=rule):
        telemetry.enable(**options)  # type: ignore[arg-type]
    assert not telemetry.is_enabled()


def test_it_is_enabled_once(program: Program) -> None:
    with telemetry.enable() as first:
        with pytest.raises(BadParamError, match="expected telemetry that is off, got on; call"):
            telemetry.enable()
        first.disable()
        first.disable()
        with telemetry.enable() as second:
            first.disable()
            assert telemetry.is_enabled()
        assert second is not first
    assert not program.runtime.context._closing, "a context forgets the telemetry that has ended"
    with pytest.raises(NotInitializedError, match="expected telemetry that is on, got off"):
        telemetry.disable()


def test_executes_leave_no_memory_behind(stubbed: Program, pytestconfig: pytest.Config) -> None:
    executes = 1_000_000 if pytestconfig.getoption("endurance") else 10_000
    tracemalloc.start()
    try:
        with telemetry.enable(sample=0.2, interval_s=1000):
            stubbed.run(2000)
            assert stubbed.events == 2 * MOST_PAIRS
            start_bytes = _traced_bytes(stubbed)
            for _ in range(10):
                stubbed.run(executes // 10)
                grown_bytes = _traced_bytes(stubbed) - start_bytes
            assert value_of(measures.EXECUTES, *LABELS) == 2000 + executes
    finally:
        tracemalloc.stop()
    assert grown_bytes < 20_000
    assert stubbed.events == 0


def _traced_bytes(program: Program) -> int:
    program.synchronize()
    telemetry.collect()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_an_error_of_the_launch_is_told_as_it_is(program: Program) -> None:
    """The launches of a plan with faults injected fail, watched or not."""
    driver = with_faults(program.runtime.driver, "launch:2=LAUNCH_FAILED")
    loaded = LoadedPlan(program.loaded.plan, Context(driver), program.runtime.modules)
    loaded.operation = "scale"
    with telemetry.enable(sample=1.0):
        introduce(loaded)
        loaded.execute(program.pointers)
        with pytest.raises(DriverError, match="LAUNCH_FAILED"):
            loaded.execute(program.pointers)
        loaded.execute(program.pointers)
        assert value_of(measures.EXECUTES, *LABELS) == 2
        assert value_of(measures.DRIVER_ERRORS, "sticky") == 1
