"""The GPUs' own measures, through NVML: utilisation, memory, temperature, power, clocks, ECC and Xid errors.

Names and units are dcgm-exporter's, so that its dashboards and alerts fit; where it runs, it tells more. Needs the
extra ``nvml``:

    telemetry.enable(feeds=[GpuFeed()])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, TypeVar

from lowdnn.status import NotSupportedError
from lowdnn.telemetry import measures
from lowdnn.telemetry.measures import Measure
from lowdnn.telemetry.registry import Registry

T = TypeVar("T")

_MIB = 1 << 20


@dataclass(frozen=True)
class GpuReading:
    """The state of one GPU; None for whatever it, or the right to ask it, does not give.

    utilisation_percent: the share of the last interval of NVML's in which a kernel ran.
    used_mib, free_mib: memory, in MiB.  power_w: watts.  clock_reasons: the bits of NVML's clock event reasons.
    ecc_single, ecc_double: errors that ECC has corrected and has not, since the driver was loaded.
    """

    index: int
    uuid: str
    utilisation_percent: float | None = None
    used_mib: float | None = None
    free_mib: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    clock_reasons: int | None = None
    ecc_single: int | None = None
    ecc_double: int | None = None


@dataclass(frozen=True)
class XidEvent:
    """A GPU has reported an error: ``number`` of NVIDIA's list of Xid errors."""

    uuid: str
    number: int


class GpuMonitor(Protocol):
    """Reads the GPUs of a machine. ``Nvml`` is one; tests bring their own."""

    def readings(self) -> Sequence[GpuReading]:
        """The state of each GPU now."""

    def xid_events(self) -> Sequence[XidEvent]:
        """The errors since the last call, oldest first; waits for none."""


class GpuFeed:
    """Brings the GPUs' measures up to date whenever measures are read, as one of the ``feeds`` of ``enable``."""

    def __init__(self, monitor: GpuMonitor | None = None) -> None:
        """monitor: ``Nvml()`` by default, whose errors this raises."""
        self._monitor = Nvml() if monitor is None else monitor
        self._last_xid: dict[str, int] = {}

    def __call__(self, registry: Registry) -> None:
        for event in self._monitor.xid_events():
            self._last_xid[event.uuid] = event.number
        for reading in self._monitor.readings():
            labels = str(reading.index), reading.uuid
            for measure, value in _gauges(reading):
                if value is not None:
                    registry.gauge(measure, *labels).set(value)
            _raise_to(registry, measures.GPU_ECC_SINGLE, labels, reading.ecc_single)
            _raise_to(registry, measures.GPU_ECC_DOUBLE, labels, reading.ecc_double)
            registry.gauge(measures.GPU_XID, *labels).set(self._last_xid.get(reading.uuid, 0))


def _gauges(reading: GpuReading) -> tuple[tuple[Measure, float | None], ...]:
    return (
        (measures.GPU_UTILISATION, reading.utilisation_percent),
        (measures.GPU_MEMORY_USED, reading.used_mib),
        (measures.GPU_MEMORY_FREE, reading.free_mib),
        (measures.GPU_TEMPERATURE, reading.temperature_c),
        (measures.GPU_POWER, reading.power_w),
        (measures.GPU_SM_CLOCK, reading.sm_clock_mhz),
        (measures.GPU_MEMORY_CLOCK, reading.memory_clock_mhz),
        (measures.GPU_CLOCK_REASONS, reading.clock_reasons),
    )


def _raise_to(registry: Registry, measure: Measure, labels: tuple[str, ...], total: float | None) -> None:
    """Brings a counter to ``total``; a smaller one, as after a reset of the driver, leaves it."""
    if total is not None:
        counter = registry.counter(measure, *labels)
        counter.add(max(0.0, total - counter.read()))


class Nvml:
    """``GpuMonitor`` by NVML (package ``nvidia-ml-py``). All GPUs that the process may see, also where
    ``CUDA_VISIBLE_DEVICES`` hides some."""

    def __init__(self) -> None:
        """Raises ModuleNotFoundError without the package, NotSupportedError where there is no driver."""
        try:
            nvml = self._nvml = import_module("pynvml")
        except ModuleNotFoundError:
            hint = "lowdnn.telemetry.nvml needs nvidia-ml-py: pip install 'lowdnn[nvml]'"
            raise ModuleNotFoundError(hint, name="pynvml") from None
        try:
            nvml.nvmlInit()
            self._gpus = [nvml.nvmlDeviceGetHandleByIndex(place) for place in range(nvml.nvmlDeviceGetCount())]
        except nvml.NVMLError as error:
            raise NotSupportedError.at("telemetry.Nvml", expected="a driver with NVML", got=error) from None
        self._uuids = [str(nvml.nvmlDeviceGetUUID(gpu)) for gpu in self._gpus]
        self._events = self._registered_events()

    def readings(self) -> Sequence[GpuReading]:
        return [self._reading(place, gpu) for place, gpu in enumerate(self._gpus)]

    def xid_events(self) -> Sequence[XidEvent]:
        found: list[XidEvent] = []
        while self._events is not None:
            data = self._asked(self._nvml.nvmlEventSetWait_v2, self._events, 0)
            if data is None:
                break
            uuid = str(self._nvml.nvmlDeviceGetUUID(data.device))
            found.append(XidEvent(uuid, int(data.eventData)))
        return found

    def _reading(self, place: int, gpu: Any) -> GpuReading:
        nvml, ask = self._nvml, self._asked
        rates = ask(nvml.nvmlDeviceGetUtilizationRates, gpu)
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, gpu, nvml.nvmlMemory_v2) or ask(nvml.nvmlDeviceGetMemoryInfo, gpu)
        power_mw = ask(nvml.nvmlDeviceGetPowerUsage, gpu)
        corrected, uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        return GpuReading(
            place,
            self._uuids[place],
            utilisation_percent=None if rates is None else rates.gpu,
            used_mib=None if memory is None else memory.used / _MIB,
            free_mib=None if memory is None else memory.free / _MIB,
            temperature_c=ask(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU),
            power_w=None if power_mw is None else power_mw / 1e3,
            sm_clock_mhz=ask(nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=ask(nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_MEM),
            clock_reasons=ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, gpu),
            ecc_single=ask(nvml.nvmlDeviceGetTotalEccErrors, gpu, corrected, nvml.NVML_VOLATILE_ECC),
            ecc_double=ask(nvml.nvmlDeviceGetTotalEccErrors, gpu, uncorrected, nvml.NVML_VOLATILE_ECC),
        )

    def _registered_events(self) -> Any:
        """The set of events in which NVML puts Xid errors; None where it gives none, as on a part of a GPU (MIG)."""
        events = self._asked(self._nvml.nvmlEventSetCreate)
        if events is None:
            return None
        for gpu in self._gpus:
            self._asked(self._nvml.nvmlDeviceRegisterEvents, gpu, self._nvml.nvmlEventTypeXidCriticalError, events)
        return events

    def _asked(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """The answer; None where NVML refuses: not supported, no permission, nothing yet, a lost GPU."""
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None
