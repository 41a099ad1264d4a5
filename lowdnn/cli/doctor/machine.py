"""Checks of the machine: driver, GPUs, compilers, the directory of compiled kernels."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lowdnn.cli.doctor.facts import Facts
from lowdnn.cli.doctor.findings import Finding, Verdict
from lowdnn.cli.doctor.versions import VersionRange
from lowdnn.cli.info import LEAST_CUDA, LEAST_DRIVER
from lowdnn.driver import nvrtc as compiler
from lowdnn.driver.results import CuResult
from lowdnn.runtime.cache_upkeep import verify
from lowdnn.status import LowdnnError

_LEAST_CAPABILITY = "8.0"
_TAKES_CUDA = VersionRange.of(f">={LEAST_CUDA}", "driver")
_TAKES_CAPABILITY = VersionRange.of(f">={_LEAST_CAPABILITY}", "gpu")
_NEWER = f"install NVIDIA driver {LEAST_DRIVER} or newer"
#: Why the driver does not start, by its result, and what to do.
_REMEDIES = {
    CuResult.NO_DEVICE: "look at CUDA_VISIBLE_DEVICES; give the container a GPU (--gpus, or nvidia.com/gpu)",
    CuResult.DEVICE_UNAVAILABLE: "another process holds the GPU alone: nvidia-smi -q -d COMPUTE",
    CuResult.CALL_REQUIRES_NEWER_DRIVER: _NEWER,
    CuResult.STUB_LIBRARY: "take the stub of libcuda.so.1 (.../stubs) out of LD_LIBRARY_PATH",
    CuResult.SYSTEM_NOT_READY: "start nvidia-fabricmanager, of the driver's own version",
    CuResult.SYSTEM_DRIVER_MISMATCH: "libcuda.so.1 and the kernel's module are of two versions: reboot after an update "
    "of the driver, or mount the host's libraries into the container",
    CuResult.COMPAT_NOT_SUPPORTED_ON_DEVICE: "take cuda-compat out of LD_LIBRARY_PATH: this GPU does not take it",
    CuResult.MPS_CONNECTION_FAILED: "start the MPS server, or unset CUDA_MPS_PIPE_DIRECTORY",
    CuResult.UNKNOWN: "look at the permissions of /dev/nvidia*, load nvidia-uvm (nvidia-modprobe -u), and read dmesg",
}


def driver(facts: Facts) -> Iterator[Finding]:
    """The NVIDIA driver starts, and is new enough. Without a GPU to run on, programs take the emulated device."""
    if facts.device == "emulated":
        yield Finding("driver", Verdict.OK, "programs run on the emulated device, which needs none")
    elif facts.info["cuda"] is None:
        reason = facts.info["missing"]["cuda"]["reason"]
        # A machine without an NVIDIA driver is one of those that the emulated device is for.
        is_bad = facts.device == "cuda" or bool(facts.kernel_module)
        yield Finding("driver", _bad(is_bad), reason, _driver_remedy(facts, reason))
    elif not _TAKES_CUDA.has(facts.cuda):
        reason = f"it supports CUDA {facts.cuda}, {LEAST_CUDA} is needed"
        yield Finding("driver", Verdict.FAILURE, reason, _NEWER)
    else:
        yield Finding("driver", Verdict.OK, f"{facts.kernel_module or 'it'} supports CUDA {facts.cuda}")


def gpus(facts: Facts) -> Iterator[Finding]:
    """There is a GPU, and every one has a compute capability that kernels are made for."""
    if facts.device == "emulated" or facts.info["cuda"] is None:
        return
    if not facts.gpus:
        yield Finding("gpus", _bad(facts.device == "cuda"), "the driver shows none", _REMEDIES[CuResult.NO_DEVICE])
    for gpu in facts.gpus:
        check, capability = f"gpu {gpu['number']}", gpu["compute_capability"]
        if _TAKES_CAPABILITY.has(capability):
            size = f"{gpu['memory_bytes'] / 2**30:.0f} GiB"
            yield Finding(check, Verdict.OK, f"{gpu['name']}, compute capability {capability}, {size}")
        else:
            reason = f"{gpu['name']} has compute capability {capability}, {_LEAST_CAPABILITY} is needed"
            yield Finding(check, Verdict.FAILURE, reason, "hide it by CUDA_VISIBLE_DEVICES, or take another GPU")


def temporary(facts: Facts) -> Iterator[Finding]:
    """There is a place for temporary files, without which NVRTC is not found."""
    try:
        yield Finding("temporary", Verdict.OK, f"files go to {tempfile.gettempdir()}")
    except FileNotFoundError as error:
        remedy = "mount a volume for /tmp, or set TMPDIR: NVRTC is not found without one"
        yield Finding("temporary", Verdict.FAILURE, str(error), remedy)


def nvrtc(facts: Facts) -> Iterator[Finding]:
    """The compiler loads and compiles."""
    if facts.info["nvrtc"] is None:
        missing = facts.info["missing"]["nvrtc"]
        yield Finding("nvrtc", Verdict.FAILURE, missing["reason"], missing["advice"])
        return
    try:
        compiler.build()
    except LowdnnError as error:
        yield Finding("nvrtc", Verdict.FAILURE, str(error), "pip install --force-reinstall 'nvidia-cuda-nvrtc==13.0.*'")
    else:
        yield Finding("nvrtc", Verdict.OK, f"{facts.version_of('nvrtc')} compiles")


def nccl(facts: Facts) -> Iterator[Finding]:
    """NCCL loads where there are several GPUs."""
    if facts.nccl:
        yield Finding("nccl", Verdict.OK, f"{facts.nccl} is loaded")
    elif len(facts.gpus) > 1:
        reason = f"there are {len(facts.gpus)} GPUs, and no NCCL to join them"
        yield Finding(
            "nccl", Verdict.WARNING, reason, "pip install 'lowdnn[distributed]', if lowdnn.distributed is used"
        )
    else:
        yield Finding("nccl", Verdict.OK, "not installed, and of no use to one GPU")


def cache(facts: Facts) -> Iterator[Finding]:
    """Compiled kernels are kept, in a directory that may be used, undamaged, with room for more."""
    found = facts.info["cache"]
    if found is None or facts.config.cache_dir is None:
        missing = facts.info["missing"]["cache"]
        yield Finding("cache", Verdict.WARNING, missing["reason"], missing["advice"])
        return
    where, kept = found["directory"], f"{found['files']} files, {found['size_bytes']} bytes"
    damaged = verify(facts.config.cache_dir).damaged
    if damaged:
        names = f"{len(damaged)} files in {where} are damaged, {damaged[0].name}: {damaged[0].problem}"
        yield Finding("cache", Verdict.WARNING, names, "lowdnn cache verify --repair")
    elif not found["is_writable"]:
        reason = f"{where} is only read ({kept}): each process compiles what it lacks"
        yield Finding("cache", Verdict.WARNING, reason, "set LOWDNN_CACHE_DIR to a directory of your own")
    else:
        yield Finding("cache", Verdict.OK, f"{where} keeps {kept}, sound")
        yield _room(Path(where), found["limit_bytes"] - found["size_bytes"])


def _room(directory: Path, more_bytes: int) -> Finding:
    """Whether the file system has room for the bytes that the cache may still take up."""
    there = next(path for path in (directory, *directory.parents) if path.is_dir())
    status = os.statvfs(there)
    free_bytes = status.f_bavail * status.f_frsize
    reason = f"{free_bytes} bytes are free for {directory}, which may take up {max(more_bytes, 0)} more"
    if free_bytes >= more_bytes:
        return Finding("disk", Verdict.OK, reason)
    return Finding("disk", Verdict.WARNING, reason, "make room, or lower LOWDNN_CACHE_SIZE")


def _bad(is_failure: bool) -> Verdict:
    return Verdict.FAILURE if is_failure else Verdict.WARNING


def _driver_remedy(facts: Facts, reason: str) -> str:
    for result, remedy in _REMEDIES.items():
        if result.c_name in reason:
            return remedy
    if facts.kernel_module:
        return (
            f"the kernel has driver {facts.kernel_module}, and this process no libcuda.so.1: start the container by "
            "the NVIDIA runtime (--gpus all), or install the driver's libraries of that version"
        )
    return f"{_NEWER}; without a GPU, set LOWDNN_DEVICE=emulated"
