"""The GPUs' measures, from a stand-in for the monitor and from one for NVML itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lowdnn import telemetry
from lowdnn.status import NotSupportedError
from lowdnn.telemetry import Registry, measures
from lowdnn.telemetry.nvml import GpuFeed, GpuReading, Nvml, XidEvent
from tests.telemetry.conftest import value_of


class Monitor:
    """Two GPUs, of which the second one tells little."""

    def __init__(self) -> None:
        self.first = GpuReading(0, "GPU-a", 80.0, 1000.0, 3000.0, 60.0, 350.5, 1700.0, 2600.0, 4, 3, 1)
        self.events: list[XidEvent] = []

    def readings(self) -> Sequence[GpuReading]:
        return [self.first, GpuReading(1, "GPU-b")]

    def xid_events(self) -> Sequence[XidEvent]:
        events, self.events = self.events, []
        return events


def test_gpus_have_dcgms_measures() -> None:
    monitor = Monitor()
    monitor.events = [XidEvent("GPU-a", 79), XidEvent("GPU-a", 31)]
    with telemetry.enable(feeds=[GpuFeed(monitor)]):
        for _ in range(2):
            families = {family.measure.name: family for family in telemetry.collect()}
        found = {name: family.samples[0].value for name, family in families.items() if name.startswith("DCGM")}
        assert found == {
            "DCGM_FI_DEV_GPU_UTIL": 80.0,
            "DCGM_FI_DEV_FB_USED": 1000.0,
            "DCGM_FI_DEV_FB_FREE": 3000.0,
            "DCGM_FI_DEV_GPU_TEMP": 60.0,
            "DCGM_FI_DEV_POWER_USAGE": 350.5,
            "DCGM_FI_DEV_SM_CLOCK": 1700.0,
            "DCGM_FI_DEV_MEM_CLOCK": 2600.0,
            "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 4.0,
            "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 3.0,
            "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 1.0,
            "DCGM_FI_DEV_XID_ERRORS": 31.0,
        }
        told = {name for name, family in families.items() if len(family.samples) == 2 and name.startswith("DCGM")}
        assert told == {"DCGM_FI_DEV_XID_ERRORS"}
        assert value_of(measures.GPU_XID, "1", "GPU-b") == 0


def test_counts_of_errors_never_fall() -> None:
    monitor, registry = Monitor(), Registry()
    feed = GpuFeed(monitor)
    for single, expected in ((5, 5), (2, 5), (9, 9)):
        monitor.first = GpuReading(0, "GPU-a", ecc_single=single)
        feed(registry)
        assert registry.counter(measures.GPU_ECC_SINGLE, "0", "GPU-a").read() == expected


def test_a_monitor_that_fails_leaves_the_other_measures() -> None:
    monitor = Monitor()
    monitor.xid_events = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    with telemetry.enable(feeds=[GpuFeed(monitor)]):
        assert any(family.measure is measures.BUFFER_BYTES for family in telemetry.collect())


class NvmlError(Exception):
    pass


def _module(**calls: Any) -> SimpleNamespace:
    """A stand-in for pynvml, whose calls that are not given are not supported."""
    pending = [SimpleNamespace(device="b", eventData=48), SimpleNamespace(device="a", eventData=63)]

    def unsupported(*_: object) -> Any:
        raise NvmlError("Not Supported")

    def wait(events: object, timeout_ms: int) -> Any:
        assert (events, timeout_ms) == ("events", 0)
        return pending.pop(0) if pending else unsupported()

    def memory(gpu: str, version: int | None = None) -> Any:
        return unsupported() if version else SimpleNamespace(used=5 << 20, free=7 << 20)

    names = (
        "nvmlDeviceGetUtilizationRates nvmlDeviceGetMemoryInfo nvmlDeviceGetPowerUsage nvmlDeviceGetTemperature "
        "nvmlDeviceGetClockInfo nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetTotalEccErrors nvmlEventSetCreate "
        "nvmlDeviceRegisterEvents nvmlEventSetWait_v2"
    )
    constants = (
        "nvmlMemory_v2 NVML_MEMORY_ERROR_TYPE_CORRECTED NVML_MEMORY_ERROR_TYPE_UNCORRECTED NVML_TEMPERATURE_GPU "
        "NVML_CLOCK_SM NVML_CLOCK_MEM NVML_VOLATILE_ECC nvmlEventTypeXidCriticalError"
    )
    given = {
        "NVMLError": NvmlError,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": "ab".__getitem__,
        "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}",
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetPowerUsage": lambda gpu: 123_456,
        "nvmlDeviceGetClockInfo": lambda gpu, clock: {"NVML_CLOCK_SM": 1980, "NVML_CLOCK_MEM": 2619}[clock],
        "nvmlDeviceGetTotalEccErrors": lambda gpu, kind, counter: len(kind),
        "nvmlEventSetCreate": lambda: "events",
        "nvmlEventSetWait_v2": wait,
    }
    return SimpleNamespace(
        **(dict.fromkeys(names.split(), unsupported) | {name: name for name in constants.split()} | given | calls)
    )


def test_nvml_gives_what_the_gpu_supports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _module())
    nvml = Nvml()
    first, second = nvml.readings()
    assert first == GpuReading(
        0,
        "GPU-a",
        used_mib=5.0,
        free_mib=7.0,
        power_w=123.456,
        sm_clock_mhz=1980,
        memory_clock_mhz=2619,
        ecc_single=len("NVML_MEMORY_ERROR_TYPE_CORRECTED"),
        ecc_double=len("NVML_MEMORY_ERROR_TYPE_UNCORRECTED"),
    )
    assert second.uuid == "GPU-b"
    assert nvml.xid_events() == [XidEvent("GPU-b", 48), XidEvent("GPU-a", 63)]
    assert nvml.xid_events() == []


def test_the_stand_in_has_the_names_of_the_package() -> None:
    package = pytest.importorskip("pynvml", reason="the stand-in is compared with it")
    missing = [name for name in vars(_module()) if not hasattr(package, name)]
    assert not missing


def test_a_machine_without_a_driver_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise NvmlError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", _module(nvmlInit=failing))
    with pytest.raises(NotSupportedError, match="expected a driver with NVML, got Driver Not Loaded"):
        GpuFeed()
