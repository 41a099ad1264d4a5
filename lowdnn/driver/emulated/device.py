"""What the emulated device answers when it is asked about itself: the facts of an A100 or an H200."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowdnn.arch.specs import spec_named
from lowdnn.driver.base import DeviceAttribute

#: Newest CUDA version and PTX ISA that the emulated driver takes.
CUDA_VERSION = 13000
PTX_ISA = (9, 0)

#: Dynamic plus static shared memory of a block without opting in to more, in bytes.
DEFAULT_SHARED_BYTES = 49152
MAX_THREADS_PER_BLOCK = 1024
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_BLOCKS_PER_SM = 32
#: Blocks of a cluster, without and with NON_PORTABLE_CLUSTER_SIZE_ALLOWED.
MAX_PORTABLE_CLUSTER = 8
MAX_CLUSTER = 16
#: Multiprocessors of the groups (GPCs) that hold clusters, as the answers of an H200 tell them; clusters of two fit on
#: the pairs beside them as well.
CLUSTER_GROUPS = (16, 16, 16, 16, 16, 16, 16, 12)
#: Blocks of clusters that lie on one multiprocessor at a time.
MAX_CLUSTER_BLOCKS_PER_SM = 8


@dataclass(frozen=True)
class EmulatedDevice:
    """One emulated device; ``memory_bytes`` is what it says it has, taken from the host only as it is touched."""

    arch: str
    name: str
    memory_bytes: int
    attributes: Mapping[DeviceAttribute, int]
    copy_bytes_per_ns: int


def emulated_device(arch: str) -> EmulatedDevice:
    """The device for ``sm_80`` or ``sm_90a``; raises ArchMismatchError for another name."""
    spec = spec_named(arch)
    major, minor = spec.compute_capability
    clock_khz, memory_clock_khz, bus_bits, memory_bytes = _BOARD[arch]
    attributes = {
        DeviceAttribute.MAX_THREADS_PER_BLOCK: MAX_THREADS_PER_BLOCK,
        DeviceAttribute.MAX_GRID_DIM_X: MAX_GRID[0],
        DeviceAttribute.MAX_GRID_DIM_Y: MAX_GRID[1],
        DeviceAttribute.MAX_GRID_DIM_Z: MAX_GRID[2],
        DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK: DEFAULT_SHARED_BYTES,
        DeviceAttribute.WARP_SIZE: 32,
        DeviceAttribute.MAX_REGISTERS_PER_BLOCK: spec.registers_per_sm,
        DeviceAttribute.CLOCK_RATE_KHZ: clock_khz,
        DeviceAttribute.MULTIPROCESSOR_COUNT: spec.sm_count,
        DeviceAttribute.MEMORY_CLOCK_RATE_KHZ: memory_clock_khz,
        DeviceAttribute.GLOBAL_MEMORY_BUS_WIDTH_BITS: bus_bits,
        DeviceAttribute.L2_CACHE_BYTES: spec.l2_bytes,
        DeviceAttribute.MAX_THREADS_PER_MULTIPROCESSOR: spec.threads_per_sm,
        DeviceAttribute.COMPUTE_CAPABILITY_MAJOR: major,
        DeviceAttribute.COMPUTE_CAPABILITY_MINOR: minor,
        DeviceAttribute.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: spec.shared_bytes_per_sm,
        DeviceAttribute.MAX_REGISTERS_PER_MULTIPROCESSOR: spec.registers_per_sm,
        DeviceAttribute.COOPERATIVE_LAUNCH: 1,
        DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: spec.shared_bytes_per_block,
        DeviceAttribute.MEMORY_POOLS_SUPPORTED: 1,
        DeviceAttribute.CLUSTER_LAUNCH: int(major >= 9),
    }
    return EmulatedDevice(arch, f"lowdnn emulated {arch}", memory_bytes, attributes, int(spec.copy_bytes_per_s / 1e9))


#: Clock in kHz, memory clock in kHz, bus width in bits, memory in bytes: A100 SXM 80 GB, H200 SXM.
_BOARD = {
    "sm_80": (1_410_000, 1_593_000, 5120, 80 << 30),
    "sm_90a": (1_980_000, 3_201_000, 6144, 141 << 30),
}
