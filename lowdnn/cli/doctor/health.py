"""Checks of what NVML tells about the GPUs: clocks that are held down, memory that is taken, faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lowdnn.cli.doctor.facts import Facts
from lowdnn.cli.doctor.findings import Finding, Verdict
from lowdnn.telemetry.nvml import GpuReading

#: Reasons for lower clocks that slow kernels down, by NVML's bits (nvmlClocksEventReasons in nvml.h).
_SLOWING = {
    0x4: "the power cap",
    0x8: "hardware: heat or power",
    0x20: "heat, by the driver",
    0x40: "heat, by the hardware",
    0x80: "the power brake of the machine",
}
_LEAST_FREE = 0.1


def monitor(facts: Facts) -> Iterator[Finding]:
    """NVML answers, where programs run on GPUs."""
    if facts.monitor is None and _runs_on_gpus(facts):
        remedy = "pip install 'lowdnn[nvml]'; nvidia-smi -q tells the same"
        yield Finding("nvml", Verdict.UNKNOWN, f"clocks, memory and faults are not known: {facts.no_monitor}", remedy)


def clocks(facts: Facts) -> Iterator[Finding]:
    """No GPU's clocks are lowered for power or heat."""
    for reading in _readings(facts):
        check, bits = f"clocks {reading.index}", reading.clock_reasons
        state = f"SM clock {_shown(reading.sm_clock_mhz)} MHz, {_shown(reading.temperature_c)} °C"
        state += f", {_shown(reading.power_w)} W"
        if bits is None:
            yield Finding(check, Verdict.UNKNOWN, f"NVML does not say why clocks are what they are; {state}")
        elif reasons := [text for bit, text in _SLOWING.items() if bits & bit]:
            remedy = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; look at fans, air and power limits"
            yield Finding(check, Verdict.WARNING, f"lowered by {', '.join(reasons)}; {state}", remedy)
        else:
            yield Finding(check, Verdict.OK, state)


def memory(facts: Facts) -> Iterator[Finding]:
    """Every GPU has memory left."""
    for reading in _readings(facts):
        used, free = reading.used_mib, reading.free_mib
        if used is None or free is None:
            continue
        check, state = f"memory {reading.index}", f"{free:.0f} MiB of {used + free:.0f} are free"
        if free >= _LEAST_FREE * (used + free):
            yield Finding(check, Verdict.OK, state)
        else:
            remedy = "nvidia-smi --query-compute-apps=pid,used_memory --format=csv says who holds it"
            yield Finding(check, Verdict.WARNING, state, remedy)


def faults(facts: Facts) -> Iterator[Finding]:
    """No GPU's memory has an error that ECC could not correct, and no Xid error came while the other checks ran."""
    events = [] if facts.monitor is None else list(facts.monitor.xid_events())
    for reading in _readings(facts):
        check = f"faults {reading.index}"
        xids = [str(event.number) for event in events if event.uuid == reading.uuid]
        if xids:
            reason = f"Xid {', '.join(xids)} while the doctor ran"
            yield Finding(check, Verdict.FAILURE, reason, "drain the node; dmesg, and NVIDIA's list of Xid errors")
        elif reading.ecc_double:
            reason = f"{reading.ecc_double} errors of memory that ECC could not correct, since the driver was loaded"
            yield Finding(check, Verdict.FAILURE, reason, "drain the node; nvidia-smi -r, and nvidia-smi -q -d ECC")
        elif reading.ecc_double is None:
            yield Finding(check, Verdict.UNKNOWN, "NVML gives no count of ECC errors; dmesg has Xid errors")
        else:
            corrected = f"{reading.ecc_single or 0} errors of memory, all corrected"
            yield Finding(check, Verdict.OK, f"{corrected}; dmesg has Xid errors of the time before")


def _readings(facts: Facts) -> Sequence[GpuReading]:
    """The state of each GPU, where programs run on GPUs."""
    return facts.monitor.readings() if facts.monitor is not None and _runs_on_gpus(facts) else ()


def _runs_on_gpus(facts: Facts) -> bool:
    return bool(facts.gpus) and facts.device != "emulated"


def _shown(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"
