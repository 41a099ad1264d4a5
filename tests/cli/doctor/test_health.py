"""A stand-in for NVML tells of clocks, memory and faults, and the doctor judges them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from lowdnn.cli.doctor.facts import Facts
from lowdnn.cli.doctor.findings import Finding, Verdict
from lowdnn.cli.doctor.health import clocks, faults, memory, monitor
from lowdnn.telemetry.nvml import GpuReading, XidEvent
from tests.cli.doctor.support import H200, facts_of

WELL = GpuReading(0, "GPU-0", 5, 1000, 139000, 40, 90, 1980, 3200, 0x1, 3, 0)


@dataclass
class StandIn:
    """``GpuMonitor`` of given readings; its errors are told once."""

    gpus: Sequence[GpuReading]
    errors: Sequence[XidEvent] = ()

    def readings(self) -> Sequence[GpuReading]:
        return self.gpus

    def xid_events(self) -> Sequence[XidEvent]:
        told, self.errors = self.errors, ()
        return told


def _facts(*gpus: GpuReading, errors: Sequence[XidEvent] = ()) -> Facts:
    return facts_of(*[H200] * len(gpus), monitor=StandIn(gpus, errors))


@pytest.mark.parametrize("check", [monitor, clocks, memory, faults])
def test_a_gpu_that_is_well(check: Callable[[Facts], Iterator[Finding]]) -> None:
    assert all(found.verdict is Verdict.OK for found in check(_facts(WELL)))
    assert list(check(facts_of(cuda=None))) == [], "without a GPU there is nothing to tell"


@pytest.mark.parametrize(
    ("bits", "word"),
    [(0x4, "power cap"), (0x8, "hardware"), (0x20, "heat"), (0x40, "heat"), (0x80, "power brake"), (0x44, "power cap")],
)
def test_clocks_that_are_held_down(bits: int, word: str) -> None:
    (found,) = clocks(_facts(GpuReading(0, "GPU-0", clock_reasons=bits | 0x1, sm_clock_mhz=600)))
    assert found.verdict is Verdict.WARNING
    assert word in found.reason
    assert "SM clock 600 MHz, ? °C" in found.reason


@pytest.mark.parametrize("bits", [0x0, 0x1, 0x2, 0x10, 0x100])
def test_clocks_that_are_idle_or_set(bits: int) -> None:
    (found,) = clocks(_facts(GpuReading(0, "GPU-0", clock_reasons=bits)))
    assert found.verdict is Verdict.OK


def test_a_full_gpu_among_others() -> None:
    full = GpuReading(1, "GPU-1", used_mib=130_000, free_mib=10_000)
    first, second = memory(_facts(WELL, full))
    assert (first.check, first.verdict) == ("memory 0", Verdict.OK)
    assert (second.check, second.verdict) == ("memory 1", Verdict.WARNING)
    assert second.reason == "10000 MiB of 140000 are free"


def test_faults_are_failures_of_their_gpu() -> None:
    broken = GpuReading(1, "GPU-1", ecc_single=0, ecc_double=2)
    lost = GpuReading(2, "GPU-2", ecc_single=0, ecc_double=0)
    facts = _facts(WELL, broken, lost, errors=[XidEvent("GPU-2", 79)])
    first, second, third = faults(facts)
    assert (first.verdict, second.verdict, third.verdict) == (Verdict.OK, Verdict.FAILURE, Verdict.FAILURE)
    assert "3 errors of memory, all corrected" in first.reason
    assert second.reason.startswith("2 errors of memory that ECC could not correct")
    assert third.reason.startswith("Xid 79")


def test_what_is_not_told_is_not_known() -> None:
    bare = _facts(GpuReading(0, "GPU-0"))
    assert [found.verdict for check in (clocks, faults) for found in check(bare)] == [Verdict.UNKNOWN] * 2
    assert list(memory(bare)) == []
    (found,) = monitor(facts_of(H200))
    assert found.verdict is Verdict.UNKNOWN
    assert "pip install 'lowdnn[nvml]'" in found.remedy
