"""``lowdnn info``: what is installed, which devices there are, what is missing and what to do about it.

Every probe is guarded: the report comes even where the installation is broken.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lowdnn import __version__
from lowdnn.capi import loaded_library, support
from lowdnn.capi.library import LIBRARY_NAME
from lowdnn.config import Config
from lowdnn.driver.base import DeviceAttribute, Driver
from lowdnn.engines.registry import ENGINES
from lowdnn.heuristics.tuning.record_files import RecordFile
from lowdnn.heuristics.tuning.records import lines_of_other_versions, records_in
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.module_store import ModuleStore
from lowdnn.status import LowdnnError, RuntimePrerequisiteMissingError

_PACKAGES = ("cuda-bindings", "cuda-core", "numpy", "nvidia-cuda-nvrtc", "ml_dtypes", "torch")
#: The oldest NVIDIA driver that lowdnn takes.
LEAST_DRIVER = "580"
#: The CUDA version that this driver supports.
LEAST_CUDA = "13.0"
_ADVICE = {
    "cuda": "no GPU is needed: the emulated device runs everything; for one, install NVIDIA driver "
    f"{LEAST_DRIVER} or newer",
    "emulated": "unset LOWDNN_EMULATED_ARCH and LOWDNN_EMULATED_POLICY, or see lowdnn guide configuration",
    "nvrtc": "pip install 'nvidia-cuda-nvrtc==13.0.*'; without it only precompiled kernels run",
    "cache": "set LOWDNN_CACHE_DIR to a directory of your own; without it each process compiles anew",
    "ptx": "reinstall lowdnn; without precompiled PTX every kernel is compiled at first use",
}


def info(arguments: argparse.Namespace) -> int:
    """Prints the report; always 0."""
    report = collect(Config.from_environment())
    print(json.dumps(report, indent=1) if arguments.json else _as_text(report))
    return 0


def collect(config: Config) -> dict[str, Any]:
    """The report as JSON-ready values; ``missing`` maps what failed to the reason and the advice."""
    missing: dict[str, dict[str, str]] = {}

    def probe(name: str, find: Callable[[], Any]) -> Any:
        try:
            return find()
        except (LowdnnError, ImportError, OSError, ValueError) as error:
            missing[name] = {"reason": str(error), "advice": _ADVICE[name]}
            return None

    return {
        "lowdnn": {"version": __version__, "path": str(Path(__file__).resolve().parent.parent)},
        "python": {"version": platform.python_version(), "executable": sys.executable, "platform": platform.platform()},
        "packages": {name: installed_version(name) for name in _PACKAGES},
        "nvrtc": probe("nvrtc", _nvrtc),
        "cuda": probe("cuda", _cuda_devices),
        "emulated": probe("emulated", lambda: _emulated_devices(config)),
        "engines": [f"{entry.index} {entry.name}" for entry in ENGINES.entries],
        "ptx": probe("ptx", _precompiled),
        "cache": probe("cache", lambda: _cache(config)),
        "tuning": {str(directory): _records(directory) for directory in config.tuning_path},
        "capi": {LIBRARY_NAME: _library_in_place(), **_functions()},
        "config": {key: str(value) for key, value in vars(config).items()},
        "missing": missing,
    }


def installed_version(package: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    try:
        return version(package)
    except (PackageNotFoundError, ValueError):  # ValueError: the name is none
        return None


def _nvrtc() -> dict[str, str]:
    from lowdnn.driver import nvrtc

    return {"version": ".".join(map(str, nvrtc.version()))}


def _cuda_devices() -> dict[str, Any]:
    from lowdnn.driver import open_driver

    driver = open_driver("cuda")
    return {"driver_version": driver.driver_version(), "devices": _devices(driver)}


def _emulated_devices(config: Config) -> dict[str, Any]:
    from lowdnn.driver import configured_driver

    return {"devices": _devices(configured_driver(config, "emulated"))}


def _devices(driver: Driver) -> list[dict[str, Any]]:
    return [_device(driver, ordinal) for ordinal in range(driver.device_count())]


def _device(driver: Driver, ordinal: int) -> dict[str, Any]:
    def attribute(which: DeviceAttribute) -> int:
        return driver.device_attribute(ordinal, which)

    major, minor = (
        attribute(DeviceAttribute.COMPUTE_CAPABILITY_MAJOR),
        attribute(DeviceAttribute.COMPUTE_CAPABILITY_MINOR),
    )
    return {
        "number": ordinal,
        "name": driver.device_name(ordinal),
        "compute_capability": f"{major}.{minor}",
        "multiprocessors": attribute(DeviceAttribute.MULTIPROCESSOR_COUNT),
        "memory_bytes": driver.device_total_memory_bytes(ordinal),
        "images": _images(driver),
    }


def _images(driver: Driver) -> str:
    """Names the form of kernels that the device loads."""
    major, minor = driver.ptx_isa_version()
    return f"PTX up to {major}.{minor}" + (", machine code" if driver.takes_machine_code else "")


def _precompiled() -> dict[str, int]:
    store = ModuleStore.installed()
    if not store.kernels:
        raise RuntimePrerequisiteMissingError.at("ptx/MANIFEST.json", expected="precompiled kernels", got="none")
    return {"kernels": len(store.kernels)}


def _cache(config: Config) -> dict[str, Any]:
    if not config.disk_cache or config.cache_dir is None:
        raise RuntimePrerequisiteMissingError.at(
            "cache.directory", expected="one", got="none", hint="it is switched off, or there is no home directory"
        )
    facts = DiskCache(config.cache_dir, config.cache_limit_bytes).facts()
    if facts.refusal:
        got = f"{facts.directory}: {facts.refusal}"
        raise RuntimePrerequisiteMissingError.at("cache.directory", expected="a usable one", got=got)
    return asdict(facts)


def _records(directory: Path) -> str:
    """How many tuning records a directory has, or why it is not used."""
    try:
        text = RecordFile.in_directory(directory).text()
    except (OSError, LowdnnError) as error:
        return f"not used: {error}"
    records, wrong = records_in(text)
    others = len(lines_of_other_versions(text))
    counts = {"records": len(records), "of other versions": others, "damaged lines": len(wrong) - others}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count or name == "records")


def _library_in_place() -> str:
    """The library that C callers of this process get: lowdnn's in a program that ``python -m lowdnn.capi`` runs."""
    found = loaded_library()
    if found is None:
        return "not loaded"
    if not found.is_own:
        return f"another library: {found.file}"
    return f"lowdnn, {'connected' if found.is_answered else 'not connected'}: {found.file}"


def _functions() -> dict[str, Any]:
    """How many of the C functions work, and how many of the others would serve each feature."""
    known = support()
    refused = Counter(reason for reason in known.values() if reason is not None)
    return {"functions": f"{len(known) - refused.total()} of {len(known)} work", "refused": dict(refused)}


def _as_text(report: dict[str, Any]) -> str:
    lines = []
    for section, content in report.items():
        if section == "missing":
            continue
        lines.append(f"{section}")
        lines += _indented(content if content is not None else "missing", 1)
    for name, found in report["missing"].items():
        lines += [f"missing: {name}", f"  {found['reason']}", f"  -> {found['advice']}"]
    return "\n".join(lines)


def _indented(content: Any, depth: int) -> list[str]:
    pad = "  " * depth
    if isinstance(content, dict):
        lines = []
        for key, value in content.items():
            if isinstance(value, (dict, list)):
                lines += [f"{pad}{key}", *_indented(value, depth + 1)]
            else:
                lines.append(f"{pad}{key:20s} {value if value is not None else 'not installed'}")
        return lines
    if isinstance(content, list):
        return [line for value in content for line in _indented(value, depth)]
    return [f"{pad}{content}"]
