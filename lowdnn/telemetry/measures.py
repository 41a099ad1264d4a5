"""Every measure that lowdnn and its programs export: the one home of names, kinds, units, labels and help texts.

Exporters, the guide's table and the tests of the dashboards come from ``MEASURES``. Durations are in seconds and sizes
in bytes, but for the GPU's own measures, which have the names and units of dcgm-exporter (``etc/default-counters.csv``
there). A label has few values: an operation, an engine, a status, never a shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The type of a measure, as Prometheus and OpenTelemetry have them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Area(StrEnum):
    """Who writes a measure: the library, the GPU through NVML, ``lowdnn verify``, or the example of a service."""

    LIBRARY = "library"
    GPU = "gpu"
    CANARY = "canary"
    SERVICE = "service"


@dataclass(frozen=True)
class Measure:
    """One measure. A histogram has upper bounds of its buckets in ``buckets``, ascending, in its unit; behind the last
    one lies the bucket of everything else.

    values: the values of its one label, where they are known.
    sums: whether the values of several processes add up; otherwise the largest stands for all of them, as with the free
    memory of a device that they share.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    area: Area = Area.LIBRARY
    values: tuple[str, ...] = ()
    sums: bool = True

    @property
    def known_labels(self) -> tuple[tuple[str, ...], ...]:
        """The label values that a counter has from the start, so that rates see the first event, too."""
        if not self.labels:
            return ((),)
        return tuple((value,) for value in self.values)


def _steps(first: int, last: int) -> tuple[float, ...]:
    """Bounds in steps of 1, 2 and 5 from ``10**first`` to ``10**last``."""
    return (*(float(f"{digit}e{decade}") for decade in range(first, last) for digit in (1, 2, 5)), float(f"1e{last}"))


_OPERATION_AND_ENGINE = ("operation", "engine")
_CACHES = ("plan", "disk", "module")
_GPU_LABELS = ("gpu", "UUID")
#: From 1 us to 10 s.
_KERNEL_SECONDS = _steps(-6, 1)
#: From 1 us to 100 ms.
_HOST_SECONDS = _steps(-6, -1)
#: From 1 ms to 10 s.
_REQUEST_SECONDS = _steps(-3, 1)
_BATCH_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


def _counter(
    name: str, text: str, *labels: str, unit: str = "", area: Area = Area.LIBRARY, values: tuple[str, ...] = ()
) -> Measure:
    return Measure(name, Kind.COUNTER, unit, text, labels, area=area, values=values)


def _gauge(
    name: str, text: str, *labels: str, unit: str = "bytes", area: Area = Area.LIBRARY, sums: bool = True
) -> Measure:
    return Measure(name, Kind.GAUGE, unit, text, labels, area=area, sums=sums)


def _gpu(field: str, unit: str, text: str, kind: Kind = Kind.GAUGE) -> Measure:
    return Measure(f"DCGM_FI_DEV_{field}", kind, unit, text, _GPU_LABELS, area=Area.GPU, sums=False)


EXECUTES = _counter(
    "lowdnn_executes_total", "Executes of plans, those into a capture included.", *_OPERATION_AND_ENGINE
)
PLANS = _counter(
    "lowdnn_plans_total",
    "Plans loaded, by where they come from: heuristic, record (of tuning), bundle, or document (a stored plan).",
    "source",
    values=("heuristic", "record", "bundle", "document"),
)
COMPILES = _counter("lowdnn_compiles_total", "Kernels that NVRTC compiled.")
COMPILE_SECONDS = _counter("lowdnn_compile_seconds_total", "Time that NVRTC took for them.", unit="seconds")
CACHE_HITS = _counter(
    "lowdnn_cache_hits_total",
    "Plans found loaded (plan), kernels found in the disk cache (disk), and kernels found precompiled (module).",
    "cache",
    values=_CACHES,
)
CACHE_MISSES = _counter(
    "lowdnn_cache_misses_total",
    "Plans that had to be loaded (plan), and kernels in neither the disk cache (disk) nor precompiled (module).",
    "cache",
    values=_CACHES,
)
MODULE_LOADS = _counter("lowdnn_module_loads_total", "Modules that the driver loaded.")
REFUSALS = _counter("lowdnn_refusals_total", "Calls that raised an error, by its status.", "status")
ALGORITHM_SWITCHES = _counter(
    "lowdnn_algorithm_switches_total",
    "Graphs whose plan changed to one of another engine or with other knobs; the event names the graph.",
    "operation",
    "from_engine",
    "to_engine",
)
OUT_OF_MEMORY = _counter("lowdnn_out_of_memory_total", "Driver calls that found no memory on the device.")
WORKSPACE_FAILURES = _counter(
    "lowdnn_workspace_failures_total", "Workspaces that were too small, or that could not be allocated."
)
DRIVER_ERRORS = _counter(
    "lowdnn_driver_errors_total",
    "Errors of the driver: sticky ones, after which a process can only end, and other ones.",
    "kind",
    values=("sticky", "other"),
)
FALLBACKS = _counter(
    "lowdnn_fallbacks_total",
    "Calls that the native kernel ran (torch), graphs split into several plans (composite), and plans that ran in "
    "place of one not compiled yet (cache).",
    "from",
    values=("torch", "composite", "cache"),
)
HANGS = _counter("lowdnn_hangs_total", "Executes that the watchdog found beyond their limit of time.")

BUFFER_BYTES = _gauge("lowdnn_buffer_bytes", "Device memory that open buffers hold.", unit="bytes")
WORKSPACE_BYTES = _gauge(
    "lowdnn_workspace_bytes", "Device memory that workspaces hold, those of pools included.", unit="bytes"
)
MODULE_BYTES = _gauge("lowdnn_module_bytes", "Sizes of the loaded images together: PTX and machine code.", unit="bytes")
FREE_BYTES = _gauge("lowdnn_device_memory_free_bytes", "Free memory of a device in use.", "device", sums=False)
TOTAL_BYTES = _gauge("lowdnn_device_memory_total_bytes", "Memory of a device in use.", "device", sums=False)

KERNEL_SECONDS = Measure(
    "lowdnn_kernel_seconds",
    Kind.HISTOGRAM,
    "seconds",
    "Device time of sampled executes, between an event before the first launch and one behind the last.",
    _OPERATION_AND_ENGINE,
    _KERNEL_SECONDS,
)
EXECUTE_HOST_SECONDS = Measure(
    "lowdnn_execute_host_seconds",
    Kind.HISTOGRAM,
    "seconds",
    "Host time of sampled executes of plans.",
    ("operation",),
    _HOST_SECONDS,
)

GPU_UTILISATION = _gpu("GPU_UTIL", "percent", "GPU utilization (in %).")
GPU_MEMORY_USED = _gpu("FB_USED", "MiB", "Framebuffer memory used (in MiB).")
GPU_MEMORY_FREE = _gpu("FB_FREE", "MiB", "Framebuffer memory free (in MiB).")
GPU_TEMPERATURE = _gpu("GPU_TEMP", "degrees Celsius", "GPU temperature (in C).")
GPU_POWER = _gpu("POWER_USAGE", "watts", "Power draw (in W).")
GPU_SM_CLOCK = _gpu("SM_CLOCK", "MHz", "SM clock frequency (in MHz).")
GPU_MEMORY_CLOCK = _gpu("MEM_CLOCK", "MHz", "Memory clock frequency (in MHz).")
#: DCGM before 3.3 calls it DCGM_FI_DEV_CLOCK_THROTTLE_REASONS.
GPU_CLOCK_REASONS = _gpu("CLOCKS_EVENT_REASONS", "bits", "Why the clocks are lowered: the bits of NVML's reasons.")
GPU_ECC_SINGLE = _gpu(
    "ECC_SBE_VOL_TOTAL", "", "Single-bit errors of memory since the driver was loaded.", kind=Kind.COUNTER
)
GPU_ECC_DOUBLE = _gpu(
    "ECC_DBE_VOL_TOTAL", "", "Double-bit errors of memory since the driver was loaded.", kind=Kind.COUNTER
)
GPU_XID = _gpu("XID_ERRORS", "", "Number of the last Xid error; 0 where none was seen.")

VERIFY_FAILURES = _gauge(
    "lowdnn_verify_failures", "Checks that a case failed; 0 where it passed.", "case", unit="", area=Area.CANARY
)
VERIFY_LARGEST_ERROR = _gauge(
    "lowdnn_verify_largest_error",
    "Largest error of a case, as a share of its tolerance.",
    "case",
    unit="",
    area=Area.CANARY,
    sums=False,
)

SERVICE_REQUESTS = _counter(
    "lowdnn_service_requests_total", "Requests answered, by the HTTP status code.", "code", area=Area.SERVICE
)
SERVICE_REQUEST_SECONDS = Measure(
    "lowdnn_service_request_seconds",
    Kind.HISTOGRAM,
    "seconds",
    "Time of requests from end to end.",
    buckets=_REQUEST_SECONDS,
    area=Area.SERVICE,
)
SERVICE_BATCH_SIZE = Measure(
    "lowdnn_service_batch_size",
    Kind.HISTOGRAM,
    "images",
    "Images that ran in one batch.",
    buckets=_BATCH_SIZES,
    area=Area.SERVICE,
)
SERVICE_IMAGES = _counter("lowdnn_service_images_total", "Images answered.", area=Area.SERVICE)
SERVICE_SHED = _counter("lowdnn_service_shed_total", "Requests turned away under load.", area=Area.SERVICE)
SERVICE_QUEUE_LENGTH = _gauge(
    "lowdnn_service_queue_length", "Requests that wait for a batch.", unit="requests", area=Area.SERVICE
)

#: Every measure, in the order of the guide's table.
MEASURES: tuple[Measure, ...] = tuple(value for value in tuple(globals().values()) if isinstance(value, Measure))


def measure_named(name: str) -> Measure | None:
    """The measure of a name, as in ``MEASURES``; None where there is none."""
    return next((measure for measure in MEASURES if measure.name == name), None)
