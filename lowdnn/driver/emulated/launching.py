"""Checks before a module is loaded or a kernel is launched, as the real driver makes them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from lowdnn.arch.multiprocessor import RESERVED_SHARED_BYTES
from lowdnn.arch.targets import runs_on
from lowdnn.driver.base import DeviceAttribute, FunctionAttribute, LaunchConfig
from lowdnn.driver.emulated.device import (
    DEFAULT_SHARED_BYTES,
    MAX_BLOCK,
    MAX_CLUSTER,
    MAX_CLUSTER_BLOCKS_PER_SM,
    MAX_GRID,
    MAX_PORTABLE_CLUSTER,
    PTX_ISA,
    EmulatedDevice,
)
from lowdnn.driver.emulated.machine import Function, divides
from lowdnn.driver.results import CuResult

_VERSION = re.compile(r"^\.version[ \t]+(\d+)\.(\d+)", re.MULTILINE)
_TARGET = re.compile(r"^\.target[ \t]+(sm_\d+[af]?)", re.MULTILINE)


@dataclass
class LoadedFunction:
    """A kernel of a loaded module, with the attributes that ``cuFuncSetAttribute`` has set."""

    function: Function
    max_dynamic_shared_bytes: int = field(init=False)
    allows_large_clusters: bool = False

    def __post_init__(self) -> None:
        self.max_dynamic_shared_bytes = DEFAULT_SHARED_BYTES - self.function.kernel.static_shared_bytes

    def set_attribute(self, attribute: FunctionAttribute, value: int, device: EmulatedDevice) -> str:
        """Sets one attribute. Returns why that is refused, or an empty string."""
        if attribute is FunctionAttribute.NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
            if value and not device.attributes[DeviceAttribute.CLUSTER_LAUNCH]:
                return "the device runs no clusters; see CLUSTER_LAUNCH"
            self.allows_large_clusters = bool(value)
            return ""
        if attribute is not FunctionAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES:
            return "a read-only attribute"
        optin = device.attributes[DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN]
        limit = optin - self.function.kernel.static_shared_bytes
        if not 0 <= value <= limit:
            return f"expected 0 to {limit} bytes"
        self.max_dynamic_shared_bytes = value
        return ""


def function_attribute(loaded: LoadedFunction, attribute: FunctionAttribute, device: EmulatedDevice) -> int:
    """An attribute's value. Registers and local bytes are 0, since only an assembler decides them."""
    kernel = loaded.function.kernel
    compute = 10 * device.compute_capability[0] + device.compute_capability[1]
    required = kernel.clusters.required or (0, 0, 0)
    return {
        FunctionAttribute.MAX_THREADS_PER_BLOCK: kernel.max_threads,
        FunctionAttribute.SHARED_SIZE_BYTES: kernel.static_shared_bytes,
        FunctionAttribute.CONST_SIZE_BYTES: 0,
        FunctionAttribute.LOCAL_SIZE_BYTES: 0,
        FunctionAttribute.NUM_REGS: 0,
        FunctionAttribute.PTX_VERSION: compute,
        FunctionAttribute.BINARY_VERSION: compute,
        FunctionAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES: loaded.max_dynamic_shared_bytes,
        FunctionAttribute.REQUIRED_CLUSTER_WIDTH: required[0],
        FunctionAttribute.REQUIRED_CLUSTER_HEIGHT: required[1],
        FunctionAttribute.REQUIRED_CLUSTER_DEPTH: required[2],
        FunctionAttribute.NON_PORTABLE_CLUSTER_SIZE_ALLOWED: int(loaded.allows_large_clusters),
    }[attribute]


def blocks_per_multiprocessor(
    loaded: LoadedFunction, block_threads: int, shared_bytes: int, device: EmulatedDevice
) -> int:
    """The number of resident blocks that threads, shared memory and block slots allow; registers are not known here."""
    threads = device.attributes[DeviceAttribute.MAX_THREADS_PER_MULTIPROCESSOR] // max(block_threads, 1)
    per_block = loaded.function.kernel.static_shared_bytes + shared_bytes + RESERVED_SHARED_BYTES
    shared = device.attributes[DeviceAttribute.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR] // per_block
    return min(threads, shared, device.max_blocks_per_sm)


def active_clusters(loaded: LoadedFunction, config: LaunchConfig, device: EmulatedDevice) -> int:
    """The number of clusters that are resident at a time; 0 if the launch has no clusters. A cluster of more than two
    blocks lies in one group of multiprocessors."""
    size = math.prod(loaded.function.kernel.clusters.chosen(config.cluster))
    if size == 1:
        return 0
    resident = blocks_per_multiprocessor(loaded, math.prod(config.block), config.shared_bytes, device)
    resident = min(resident, MAX_CLUSTER_BLOCKS_PER_SM)
    if size == 2:
        return device.attributes[DeviceAttribute.MULTIPROCESSOR_COUNT] // 2 * resident
    return sum(multiprocessors * resident // size for multiprocessors in device.cluster_groups)


def potential_cluster_size(loaded: LoadedFunction, config: LaunchConfig, device: EmulatedDevice) -> int:
    """Blocks of the largest cluster that the device can run with blocks of this shape; the kernel's own cluster
    directives are ignored."""
    resident = blocks_per_multiprocessor(loaded, math.prod(config.block), config.shared_bytes, device)
    return min(_largest_cluster(loaded, device), max(device.cluster_groups) * resident)


def launch_problem(loaded: LoadedFunction, config: LaunchConfig, device: EmulatedDevice) -> tuple[CuResult, str] | None:
    """Why the driver would refuse the launch: a result and a sentence."""
    threads = math.prod(config.block)
    allowed = loaded.function.kernel.max_threads
    if any(not 1 <= size <= limit for size, limit in zip(config.grid, MAX_GRID, strict=True)):
        return CuResult.INVALID_VALUE, f"grid: expected 1 to {MAX_GRID}, got {config.grid}"
    if any(not 1 <= size <= limit for size, limit in zip(config.block, MAX_BLOCK, strict=True)):
        return CuResult.INVALID_VALUE, f"block: expected 1 to {MAX_BLOCK}, got {config.block}"
    if threads > allowed:
        return CuResult.INVALID_VALUE, f"block: expected at most {allowed} threads, got {threads}"
    if config.shared_bytes > loaded.max_dynamic_shared_bytes:
        limit = loaded.max_dynamic_shared_bytes
        return CuResult.INVALID_VALUE, f"shared_bytes: expected at most {limit}, got {config.shared_bytes}"
    problem = _cluster_problem(loaded, config, device)
    if problem is None and config.cooperative:
        problem = _cooperative_problem(loaded, config, device)
    return problem


def image_problem(image: bytes, device: EmulatedDevice) -> tuple[CuResult, str, str] | None:
    """Why the driver would refuse the image: a result, arguments and a sentence."""
    size = f"{len(image)} bytes"
    if image.startswith(b"\x7fELF"):
        return CuResult.NO_BINARY_FOR_GPU, size, "a cubin; the emulated device takes PTX"
    text = image.rstrip(b"\0").decode(errors="replace")
    version, target = _VERSION.search(text), _TARGET.search(text)
    if version is None or target is None:
        return CuResult.INVALID_IMAGE, size, "neither PTX nor a cubin"
    if (int(version[1]), int(version[2])) > PTX_ISA:
        return CuResult.UNSUPPORTED_PTX_VERSION, size, f"PTX ISA {version[1]}.{version[2]}, newest is {PTX_ISA}"
    if not runs_on(target[1], device.compute_capability):
        return CuResult.NO_BINARY_FOR_GPU, size, f"PTX for {target[1]} on {device.arch}"
    return None


def _largest_cluster(loaded: LoadedFunction, device: EmulatedDevice) -> int:
    if not device.attributes[DeviceAttribute.CLUSTER_LAUNCH]:
        return 1
    return MAX_CLUSTER if loaded.allows_large_clusters else MAX_PORTABLE_CLUSTER


def _cluster_problem(
    loaded: LoadedFunction, config: LaunchConfig, device: EmulatedDevice
) -> tuple[CuResult, str] | None:
    bounds = loaded.function.kernel.clusters
    cluster = bounds.chosen(config.cluster)
    if cluster != (1, 1, 1) and not device.attributes[DeviceAttribute.CLUSTER_LAUNCH]:
        return CuResult.INVALID_VALUE, f"cluster: expected (1, 1, 1), got {cluster}; see CLUSTER_LAUNCH"
    if not divides(cluster, config.grid):
        message = f"cluster: expected extents that divide the grid {config.grid}, got {cluster}"
        return CuResult.INVALID_CLUSTER_SIZE, message
    largest = _largest_cluster(loaded, device)
    if math.prod(cluster) > largest:
        more = "" if loaded.allows_large_clusters else "; see NON_PORTABLE_CLUSTER_SIZE_ALLOWED"
        return CuResult.INVALID_CLUSTER_SIZE, f"cluster: expected at most {largest} blocks, got {cluster}{more}"
    wrong = bounds.problem(config.cluster)
    return (CuResult.INVALID_CLUSTER_SIZE, wrong) if wrong else None


def _cooperative_problem(
    loaded: LoadedFunction, config: LaunchConfig, device: EmulatedDevice
) -> tuple[CuResult, str] | None:
    """Why a cooperative launch is refused: all its blocks must be resident at a time."""
    size = math.prod(loaded.function.kernel.clusters.chosen(config.cluster))
    if size > 1:
        limit = active_clusters(loaded, config, device) * size
    else:
        resident = blocks_per_multiprocessor(loaded, math.prod(config.block), config.shared_bytes, device)
        limit = device.attributes[DeviceAttribute.MULTIPROCESSOR_COUNT] * resident
    if math.prod(config.grid) <= limit:
        return None
    return CuResult.COOPERATIVE_LAUNCH_TOO_LARGE, f"grid: expected at most {limit} blocks, got {config.grid}"
