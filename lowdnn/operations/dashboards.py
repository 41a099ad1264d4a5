"""The three dashboards: for those who pay, for those on call, for those who search for a cause.

M1 to M10 are the measures of ``lowdnn guide operations``. Recorded series (``lowdnn:...``) come from
``files/recording.rules.yml``.
"""

from __future__ import annotations

from lowdnn.operations.grafana import Dashboard, Panel, Query

_POOL = '{pool=~"$pool"}'


def _stat(title: str, description: str, unit: str, expr: str, warning: float | None = None) -> Panel:
    return Panel(title, description, unit, (Query(expr),), "stat", warning, width=4, height=4)


def _lines(title: str, description: str, unit: str, *queries: Query, warning: float | None = None) -> Panel:
    return Panel(title, description, unit, queries, warning=warning)


def _rate(labels: str, measure: str, legend: str) -> Query:
    """The growth of a counter in a second, added up by ``labels``."""
    return Query(f"sum by ({labels}) (rate({measure}{_POOL}[5m]))", legend)


def _events(labels: str, measure: str, legend: str) -> Query:
    """The events of an hour, added up by ``labels``. A series that begins within it has its value, not its growth."""
    series = f"{measure}{_POOL}"
    growth = f"increase({series}[1h])"
    born = f"({series} unless max_over_time({series}[6h] offset 1h))"
    return Query(f"sum by ({labels}) ({growth} > 0 or {born} or {growth})", legend)


EXECUTIVE = Dashboard(
    "lowdnn-executive",
    "lowdnn: executive",
    "How busy the GPUs are, how fast and how well requests are served.",
    (
        _stat(
            "GPU utilisation",
            "Mean of all GPUs (M2). Training aims at 60 to 80 %.",
            "percentunit",
            f"avg(lowdnn:gpu_utilisation:avg5m{_POOL})",
        ),
        _stat(
            "Mean latency",
            "Requests from end to end.",
            "s",
            f"avg(lowdnn:service_request_seconds:mean5m{_POOL})",
        ),
        _stat("Throughput", "Images answered a second (M7).", "short", f"sum(lowdnn:service_images:rate5m{_POOL})"),
        _stat(
            "Error rate",
            "Share of failed requests in an hour.",
            "percentunit",
            f"max(lowdnn:service_errors:ratio_rate1h{_POOL})",
            0.001,
        ),
        _stat(
            "Budget burn",
            "Errors of a day, as a multiple of what the budget allows.",
            "short",
            f"max(lowdnn:service_errors:ratio_rate1d{_POOL}) / scalar(lowdnn:target:error_budget)",
            1.0,
        ),
        _stat(
            "Active GPU nodes",
            "Hosts with a GPU that has worked within 5 minutes.",
            "short",
            f"count(max by (host) (lowdnn:gpu_utilisation:avg5m{_POOL}) > 0)",
        ),
        _lines(
            "GPU utilisation by pool",
            "High utilisation may hide a long tail of latency (M2).",
            "percentunit",
            Query(f"avg by (pool) (lowdnn:gpu_utilisation:avg5m{_POOL})", "{{pool}}"),
        ),
        _lines(
            "Latency",
            "Mean of a pool, and p99 of its slowest process (M6), beside the target.",
            "s",
            Query(f"lowdnn:service_request_seconds:mean5m{_POOL}", "{{pool}} mean"),
            Query(f"max by (pool) (lowdnn:service_request_seconds:p99{_POOL})", "{{pool}} p99"),
            Query("lowdnn:target:request_p99_seconds", "target of p99"),
        ),
        _lines(
            "Throughput by pool",
            "Images answered a second (M7).",
            "short",
            Query(f"lowdnn:service_images:rate5m{_POOL}", "{{pool}}"),
        ),
        _lines(
            "Error rate by pool",
            "Share of failed requests, beside the budget.",
            "percentunit",
            Query(f"lowdnn:service_errors:ratio_rate5m{_POOL}", "{{pool}} 5 minutes"),
            Query(f"lowdnn:service_errors:ratio_rate6h{_POOL}", "{{pool}} 6 hours"),
            Query("lowdnn:target:error_budget", "budget"),
        ),
        _lines(
            "GPU nodes",
            "Hosts with a GPU that has worked within 5 minutes, and all hosts with one.",
            "short",
            Query(
                f"count by (pool) (max by (pool, host) (lowdnn:gpu_utilisation:avg5m{_POOL}) > 0)", "{{pool}} active"
            ),
            Query(f"count by (pool) (count by (pool, host) (DCGM_FI_DEV_GPU_UTIL{_POOL}))", "{{pool}} all"),
        ),
        _lines(
            "Images by energy",
            "Images answered for each joule that the GPUs of the pool take.",
            "short",
            Query(
                f"lowdnn:service_images:rate5m{_POOL}"
                f" / on (pool) (sum by (pool) (avg_over_time(DCGM_FI_DEV_POWER_USAGE{_POOL}[5m])) > 0)",
                "{{pool}}",
            ),
        ),
    ),
)

ON_CALL = Dashboard(
    "lowdnn-on-call",
    "lowdnn: on call",
    "What is broken, where, and whether users feel it.",
    (
        Panel(
            "Alerts",
            "Alerts that fire now; each names the page of its runbook.",
            "short",
            (
                Query(
                    "sum by (alertname, severity, pool, host, instance)"
                    ' (ALERTS{alertname=~"Lowdnn.*",alertstate="firing"})'
                ),
            ),
            "table",
            width=16,
        ),
        _lines(
            "Processes that answer",
            "1 where Prometheus reads the process, 0 where it does not.",
            "short",
            Query(f"up{_POOL}", "{{job}} {{instance}}"),
        ),
        _lines(
            "Errors by window",
            "Share of failed requests over several windows, beside the budget.",
            "percentunit",
            Query(f"lowdnn:service_errors:ratio_rate5m{_POOL}", "{{pool}} 5 minutes"),
            Query(f"lowdnn:service_errors:ratio_rate30m{_POOL}", "{{pool}} 30 minutes"),
            Query(f"lowdnn:service_errors:ratio_rate1h{_POOL}", "{{pool}} 1 hour"),
            Query(f"lowdnn:service_errors:ratio_rate2h{_POOL}", "{{pool}} 2 hours"),
            Query("lowdnn:target:error_budget", "budget"),
        ),
        _lines(
            "Requests by pod",
            "Requests a second.",
            "reqps",
            Query(f"lowdnn:service_requests:rate5m{_POOL}", "{{instance}}"),
        ),
        _lines(
            "Requests by answer",
            "Answers a second by HTTP status.",
            "reqps",
            _rate("code", "lowdnn_service_requests_total", "{{code}}"),
        ),
        _lines(
            "Latency by pod",
            "p95 and p99 from end to end (M6).",
            "s",
            Query(f"lowdnn:service_request_seconds:p95{_POOL}", "{{instance}} p95"),
            Query(f"lowdnn:service_request_seconds:p99{_POOL}", "{{instance}} p99"),
            Query("lowdnn:target:request_p99_seconds", "target of p99"),
        ),
        _lines(
            "Load",
            "Requests that wait for a batch, and requests turned away a second.",
            "short",
            Query(f"sum by (instance) (lowdnn_service_queue_length{_POOL})", "{{instance}} waiting"),
            _rate("instance", "lowdnn_service_shed_total", "{{instance}} turned away"),
        ),
        _lines(
            "Driver resets",
            "Sticky errors, hangs and other errors of the driver within an hour (M5). None is good.",
            "short",
            _events("host, instance, kind", "lowdnn_driver_errors_total", "{{instance}} {{kind}}"),
            _events("host, instance", "lowdnn_hangs_total", "{{instance}} hang"),
            warning=1.0,
        ),
        _lines(
            "Xid and ECC",
            "Number of the last Xid of each GPU, and its errors of memory (M5).",
            "short",
            Query(f"DCGM_FI_DEV_XID_ERRORS{_POOL}", "{{host}} {{gpu}} Xid"),
            Query(f"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{_POOL}", "{{host}} {{gpu}} single-bit"),
            Query(f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{_POOL}", "{{host}} {{gpu}} double-bit"),
        ),
        _lines(
            "Memory by node",
            "Share of device memory in use (M3): of GPUs, and as lowdnn's processes see it.",
            "percentunit",
            Query(f"lowdnn:gpu_memory:used_ratio{_POOL}", "{{host}} {{gpu}}"),
            Query(f"lowdnn:device_memory:used_ratio{_POOL}", "{{instance}} {{device}}"),
            warning=0.9,
        ),
        _lines(
            "Out of memory",
            "Errors within an hour (M4): any, and those of workspaces (M9). None is good.",
            "short",
            _events("host, instance", "lowdnn_out_of_memory_total", "{{instance}}"),
            _events("host, instance", "lowdnn_workspace_failures_total", "{{instance}} workspace"),
            warning=1.0,
        ),
        Panel(
            "Operations that cost most",
            "The ten operations with most device time, in seconds of sampled kernels a second.",
            "s",
            (Query(f"topk(10, sum by (operation) (rate(lowdnn_kernel_seconds_sum{_POOL}[5m])))", "{{operation}}"),),
            "bargauge",
        ),
        _lines(
            "Accuracy",
            "Checks that cases of `lowdnn verify` failed (M10), and their largest error as a share of the tolerance.",
            "short",
            Query(f"lowdnn_verify_failures{_POOL}", "{{host}} {{case}} failures"),
            Query(f"lowdnn_verify_largest_error{_POOL}", "{{host}} {{case}} error"),
            warning=1.0,
        ),
        _lines(
            "Heat and slowed clocks",
            "Temperature, and 1 where heat or power lowers the clocks.",
            "short",
            Query(f"DCGM_FI_DEV_GPU_TEMP{_POOL}", "{{host}} {{gpu}} degrees Celsius"),
            Query(f"lowdnn:gpu_slowdown:bool{_POOL}", "{{host}} {{gpu}} slowed down"),
        ),
    ),
)

DEBUG = Dashboard(
    "lowdnn-debug",
    "lowdnn: debug",
    "Which kernels run, where their plans come from, and what memory they hold.",
    (
        _lines(
            "Kernel timeline",
            "Device time by operation (M1): p50, p95 and p99 of sampled executes.",
            "s",
            Query(f"lowdnn:kernel_seconds:p50{_POOL}", "{{operation}} p50"),
            Query(f"lowdnn:kernel_seconds:p95{_POOL}", "{{operation}} p95"),
            Query(f"lowdnn:kernel_seconds:p99{_POOL}", "{{operation}} p99"),
        ),
        _lines(
            "Algorithm by operation",
            "Executes a second by operation and engine.",
            "ops",
            _rate("operation, engine", "lowdnn_executes_total", "{{operation}} {{engine}}"),
        ),
        _lines(
            "Algorithm switches",
            "Plans within an hour that changed to another engine or other knobs (M8).",
            "short",
            _events(
                "operation, from_engine, to_engine",
                "lowdnn_algorithm_switches_total",
                "{{operation}}: {{from_engine}} to {{to_engine}}",
            ),
        ),
        _lines(
            "Contention of streams",
            "p99 over p50 of device time. It grows where other streams or processes take turns on the GPU.",
            "short",
            Query(
                f"lowdnn:kernel_seconds:p99{_POOL} / (lowdnn:kernel_seconds:p50{_POOL} > 0)", "{{host}} {{operation}}"
            ),
        ),
        _lines(
            "Host time of executes",
            "p50 and p99 of sampled executes by operation.",
            "s",
            *(
                Query(
                    f"histogram_quantile({share}, sum by (operation, le)"
                    f" (rate(lowdnn_execute_host_seconds_bucket{_POOL}[5m])))",
                    f"{{{{operation}}}} p{100 * share:g}",
                )
                for share in (0.5, 0.99)
            ),
        ),
        _lines(
            "Processes by GPU",
            "Processes of lowdnn on each device.",
            "short",
            Query(f"count by (host, device) (lowdnn_device_memory_total_bytes{_POOL})", "{{host}} {{device}}"),
        ),
        _lines(
            "Memory that lowdnn holds",
            "Buffers, pools of workspace, and loaded modules.",
            "bytes",
            Query(f"sum by (instance) (lowdnn_buffer_bytes{_POOL})", "{{instance}} buffers"),
            Query(f"sum by (instance) (lowdnn_workspace_bytes{_POOL})", "{{instance}} workspace"),
            Query(f"sum by (instance) (lowdnn_module_bytes{_POOL})", "{{instance}} modules"),
        ),
        _lines(
            "Free memory",
            "Free memory of each device, as lowdnn's processes see it.",
            "bytes",
            Query(f"lowdnn_device_memory_free_bytes{_POOL}", "{{instance}} {{device}}"),
        ),
        _lines(
            "Plans by source",
            "Plans loaded within an hour: by heuristics, tuning records, bundles and documents.",
            "short",
            _events("source", "lowdnn_plans_total", "{{source}}"),
            _events("from", "lowdnn_fallbacks_total", "fallback: {{from}}"),
        ),
        _lines(
            "Compiler",
            "Kernels compiled within an hour, seconds that it took, and modules loaded.",
            "short",
            _events("instance", "lowdnn_compiles_total", "{{instance}} kernels"),
            _events("instance", "lowdnn_compile_seconds_total", "{{instance}} seconds"),
            _events("instance", "lowdnn_module_loads_total", "{{instance}} modules"),
        ),
        _lines(
            "Caches",
            "Hits and misses within an hour by cache.",
            "short",
            _events("cache", "lowdnn_cache_hits_total", "{{cache}} hits"),
            _events("cache", "lowdnn_cache_misses_total", "{{cache}} misses"),
        ),
        _lines(
            "Refusals",
            "Calls that raised an error within an hour, by status.",
            "short",
            _events("status", "lowdnn_refusals_total", "{{status}}"),
        ),
        _lines(
            "Batches",
            "Mean images of a batch.",
            "short",
            Query(
                f"sum by (instance) (rate(lowdnn_service_batch_size_sum{_POOL}[5m]))"
                f" / (sum by (instance) (rate(lowdnn_service_batch_size_count{_POOL}[5m])) > 0)",
                "{{instance}}",
            ),
        ),
        _lines(
            "Clocks",
            "Clocks of multiprocessors and of memory in MHz.",
            "short",
            Query(f"DCGM_FI_DEV_SM_CLOCK{_POOL}", "{{host}} {{gpu}} SM"),
            Query(f"DCGM_FI_DEV_MEM_CLOCK{_POOL}", "{{host}} {{gpu}} memory"),
        ),
        _lines(
            "Power",
            "Power of each GPU.",
            "watt",
            Query(f"DCGM_FI_DEV_POWER_USAGE{_POOL}", "{{host}} {{gpu}}"),
        ),
    ),
)

#: By the name of the file that each is exported to.
DASHBOARDS = {"executive": EXECUTIVE, "on_call": ON_CALL, "debug": DEBUG}
