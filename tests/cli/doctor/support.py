"""Facts of machines that are not at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowdnn.cli.doctor.facts import Facts
from lowdnn.config import Config
from lowdnn.telemetry.nvml import GpuMonitor

H200 = {
    "number": 0,
    "name": "NVIDIA H200",
    "compute_capability": "9.0",
    "multiprocessors": 132,
    "memory_bytes": 150 << 30,
    "images": "PTX up to 9.0, machine code",
}


def facts_of(
    *gpus: dict[str, Any],
    cuda: int | None = 13000,
    reason: str = "",
    device: str = "auto",
    kernel_module: str = "580.65.06",
    nccl: str = "",
    cache: Path | None = None,
    monitor: GpuMonitor | None = None,
) -> Facts:
    """Facts of a machine with ``gpus``, whose driver supports ``cuda``, or does not start, for a ``reason``."""
    info = {
        "cuda": None if cuda is None else {"driver_version": cuda, "devices": list(gpus)},
        "nvrtc": {"version": "13.0"},
        "emulated": {"devices": [{"number": 0}]},
        "cache": None,
        "missing": {
            "cuda": {"reason": reason, "advice": ""},
            "cache": {"reason": "switched off", "advice": "set LOWDNN_CACHE_DIR"},
        },
    }
    return Facts(device, Config(cache_dir=cache), info, kernel_module=kernel_module, nccl=nccl, monitor=monitor)
