"""Timing in turns, and clocks on a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from lowdnn.backend.handle import Handle
from lowdnn.bench.statistics import Timing
from lowdnn.bench.timing import Captured, execute_times, interleaved
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.stream import Stream
from lowdnn.runtime.timing import event_clock, launches_for, slots_for


def test_a_timing_is_median_and_percentiles() -> None:
    timing = Timing.of([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (timing.us, timing.low_us, timing.high_us) == pytest.approx((3.0, 1.4, 4.6))
    assert timing.spread == pytest.approx(3.2 / 3)


@pytest.mark.parametrize(("slow_us", "rounds"), [(100.0, 20), (2000.0, 10), (1e6, 7)])
def test_graphs_are_replayed_in_turns(slow_us: float, rounds: int) -> None:
    calls: list[str] = []
    us = {"quick": 40.0, "slow": slow_us}
    graphs = {name: Captured(partial(calls.append, name), launches) for name, launches in (("quick", 4), ("slow", 2))}

    def clock(work: Callable[[], object]) -> float:
        work()
        return us[calls[-1]]

    timings = interleaved(graphs, clock)
    assert calls == ["quick", "slow"] * (rounds + 1)
    assert (timings["quick"].us, timings["slow"].us) == (10.0, slow_us / 2)


def test_what_a_graph_needs_is_prepared_before_each_replay_and_not_timed() -> None:
    calls: list[str] = []
    graphs = {"used up": Captured(partial(calls.append, "replay"), 1, prepare=partial(calls.append, "prepare"))}

    def clock(work: Callable[[], object]) -> float:
        assert calls[-1] == "prepare"
        work()
        return 5000.0

    interleaved(graphs, clock)
    assert calls == ["prepare", "replay"] * (7 + 1)


def test_copies_and_launches() -> None:
    assert [slots_for(size) for size in (0, 2**20, 60 * 2**20, 2**30)] == [200, 180, 3, 1]
    assert [slots_for(2**20, steps) for steps in (25, 128, 400, 2048)] == [16, 4, 1, 1]
    assert [launches_for(us, slots=3) for us in (0.5, 10.0, 1000.0)] == [200, 40, 3]


def test_work_in_a_stream_has_a_time(handle: Handle) -> None:
    context = handle.runtime.context
    with Stream.create(context) as stream, DeviceBuffer.allocate(context, 1 << 20) as buffer:
        work = partial(context.driver.memset_d8_async, buffer.address, 7, 1 << 20, stream.handle)
        with event_clock(context, stream) as clock:
            assert clock(work) > 0
        device, host = execute_times(context, stream, work, 3)
        assert 0 < host.low_us <= host.us <= host.high_us
        assert 0 < device.low_us <= device.us <= device.high_us
        assert np.all(buffer.to_host() == 7)
