"""The device's clock, and what waits: sleeps, dependent grids, register hand-over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind
from lowdnn.driver.emulated.running.clock import DeviceClock
from tests.driver.emulated.conftest import Bench

_STORE = "ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 8; add.u64 %rd1, %rd1, %rd2;"


def test_instructions_are_spread_over_all_schedulers() -> None:
    clock = DeviceClock(clock_khz=1_000_000, sm_count=10)
    clock.issue(32 * 4 * 10 * 7 - 1)
    assert clock.cycles == 6
    clock.issue(1)
    assert (clock.cycles, clock.ns) == (7, 7)
    clock.sleep(93)
    assert clock.ns == 100
    assert DeviceClock(clock_khz=3_000_000).record_event() == 500


def test_a_launch_advances_the_clock_by_its_instructions_however_it_is_cut(bench: Bench) -> None:
    module = bench.ptx(f"{_STORE} mov.u64 %rd3, 1; st.global.u64 [%rd1], %rd3;")

    def cycles(grid: int, **options: Any) -> int:
        before = bench.machine.clock.cycles
        bench.run(module, "k", grid, 64, bench.empty(512), **options)
        return bench.machine.clock.cycles - before

    one, many = cycles(1), cycles(6600)
    assert many - one == pytest.approx(6600 * 2 * 7 / (132 * 4), abs=2)
    assert cycles(6600, policy="warp-serial(3)", lane_budget=4096) == pytest.approx(many, abs=1)


def test_clocks_go_on_and_sleep_counts(bench: Bench) -> None:
    module = bench.ptx(
        f"""{_STORE}
        mov.u64 %rd3, %globaltimer; nanosleep.u32 5000; mov.u64 %rd4, %globaltimer; sub.u64 %rd3, %rd4, %rd3;
        mov.u64 %rd5, %clock64; mov.u64 %rd6, %clock64; sub.u64 %rd6, %rd6, %rd5; mad.lo.u64 %rd3, %rd6, 100000, %rd3;
        st.global.u64 [%rd1], %rd3;"""
    )
    out = bench.empty(8)
    bench.run(module, "k", 1, 1, out)
    cycles, ns = divmod(int(bench.get(out, 1, np.uint64)[0]), 100000)
    assert 5000 <= ns < 5100
    assert 0 < cycles < 100


def test_a_wait_for_time_to_pass_ends(bench: Bench) -> None:
    module = bench.ptx(
        f"""{_STORE} mov.u64 %rd3, %globaltimer; add.u64 %rd3, %rd3, 20000;
    again: mov.u64 %rd4, %globaltimer; setp.lt.u64 %p1, %rd4, %rd3; @%p1 bra again; st.global.u64 [%rd1], %rd4;"""
    )
    out = bench.empty(8)
    bench.run(module, "k", 1, 1, out)
    assert bench.machine.clock.ns >= bench.get(out, 1, np.uint64)[0] > 20000


@pytest.mark.parametrize("count", ["20", "28", "264", "%r1"])
def test_setmaxnreg_takes_a_multiple_of_eight_in_its_range(bench: Bench, count: str) -> None:
    bench.run(bench.ptx("setmaxnreg.dec.sync.aligned.u32 24; setmaxnreg.inc.sync.aligned.u32 232;"), "k", 1, 128, 0)
    with pytest.raises(EmulationFault, match="expected a multiple of 8 from 24 to 256") as refused:
        bench.ptx(f"setmaxnreg.inc.sync.aligned.u32 {count};")
    assert refused.value.kind is FaultKind.UNSUPPORTED


@pytest.mark.parametrize("warps", [1, 3])
def test_setmaxnreg_waits_for_the_whole_warpgroup(bench: Bench, warps: int) -> None:
    skip = f"mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, {32 * warps};"
    module = bench.ptx(f"{skip} @%p1 bra rest; setmaxnreg.dec.sync.aligned.u32 40; rest: bar.sync 0;")
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", 1, 128, 0)
    assert caught.value.kind is FaultKind.DEADLOCK
