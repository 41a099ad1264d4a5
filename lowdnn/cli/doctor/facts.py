"""The facts that the checks judge: the report of ``lowdnn info``, and what only a diagnosis needs."""

from __future__ import annotations

import platform
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowdnn import __version__
from lowdnn.cli.info import collect, installed_version
from lowdnn.config import Config, ConfigWarning
from lowdnn.distributed.nccl import bindings
from lowdnn.status import LowdnnError
from lowdnn.telemetry.nvml import GpuMonitor, Nvml

#: Where the module of the kernel tells its version.
KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_MODULE_VERSION = re.compile(r"Kernel Module\D*?(?:for \S+)?\s+(\d+\.\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Facts:
    """device: ``auto``, ``cuda`` or ``emulated``, where programs are to run.  info: the report of ``lowdnn info``.

    wrong_settings: the warnings about variables.  kernel_module: the version of the NVIDIA driver in the kernel
    (``580.65.06``), or empty.  nccl: the version of NCCL that is loaded (``2.28.3``), or empty.
    monitor: NVML; None where it does not answer, for the reason ``no_monitor``.
    """

    device: str
    config: Config
    info: Mapping[str, Any]
    wrong_settings: tuple[str, ...] = ()
    kernel_module: str = ""
    nccl: str = ""
    monitor: GpuMonitor | None = None
    no_monitor: str = ""

    @classmethod
    def collected(cls, device: str | None = None) -> Facts:
        """The facts of this machine; ``device`` is LOWDNN_DEVICE where none is named."""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", ConfigWarning)
            config = Config.from_environment()
        wrong = tuple(str(each.message) for each in told if issubclass(each.category, ConfigWarning))
        info, (monitor, no_monitor) = collect(config), _monitor()
        return cls(device or config.device, config, info, wrong, kernel_module(), _nccl(), monitor, no_monitor)

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs that the driver shows, as ``lowdnn info`` describes them."""
        cuda = self.info["cuda"]
        return [] if cuda is None else list(cuda["devices"])

    @property
    def cuda(self) -> str:
        """The version of CUDA that the driver supports (``13.0``), or empty."""
        cuda = self.info["cuda"]
        return "" if cuda is None else f"{cuda['driver_version'] // 1000}.{cuda['driver_version'] % 1000 // 10}"

    def version_of(self, name: str) -> str:
        """The version of one of ``NAMES``, or of an installed package; empty where there is none."""
        if name not in NAMES:
            return installed_version(name) or ""
        found: dict[str, str] = {
            "lowdnn": __version__,
            "python": platform.python_version(),
            "driver": self.kernel_module,
            "cuda": self.cuda,
            "nvrtc": (self.info["nvrtc"] or {}).get("version", ""),
            "nccl": self.nccl,
            "gpus": str(len(self.gpus)),
            "compute_capability": min((gpu["compute_capability"] for gpu in self.gpus), key=_as_numbers, default=""),
        }
        return found[name]


#: Names of versions that are no packages, each with its meaning.
NAMES = {
    "lowdnn": "this library",
    "python": "the interpreter",
    "driver": "the NVIDIA driver in the kernel, such as 580.65.06",
    "cuda": "the CUDA version that the driver supports",
    "nvrtc": "the compiler that is loaded",
    "nccl": "the NCCL that is loaded",
    "gpus": "how many GPUs this process sees",
    "compute_capability": "the lowest one of them",
}


def kernel_module(file: Path = KERNEL_MODULE) -> str:
    """The version of the NVIDIA driver in the kernel, or empty."""
    try:
        found = _MODULE_VERSION.search(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return found[1] if found else ""


def _monitor() -> tuple[GpuMonitor | None, str]:
    """NVML, or the reason why it does not answer."""
    try:
        return Nvml(), ""
    except (ImportError, LowdnnError) as error:
        return None, str(error)


def _nccl() -> str:
    try:
        number = int(bindings().get_version())
    except LowdnnError:
        return ""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _as_numbers(capability: str) -> tuple[int, ...]:
    return tuple(map(int, capability.split(".")))
