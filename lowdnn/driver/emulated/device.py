"""The emulated device's answers about itself: the facts of ``arch/``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowdnn.arch.multiprocessor import REGISTERS_PER_SM
from lowdnn.arch.specs import spec_named
from lowdnn.driver.base import DeviceAttribute

#: Newest CUDA version that the emulated driver supports, 1000 * major + 10 * minor.
CUDA_VERSION = 13000
PTX_ISA = (9, 0)

#: Dynamic plus static shared memory of a block without opting in to more, in bytes.
DEFAULT_SHARED_BYTES = 49152
MAX_THREADS_PER_BLOCK = 1024
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
#: Blocks of a cluster, without and with NON_PORTABLE_CLUSTER_SIZE_ALLOWED.
MAX_PORTABLE_CLUSTER = 8
MAX_CLUSTER = 16
#: Multiprocessors of a GPC, where it is not known how many there are of each.
_GPC = 16
#: Most blocks of clusters that are resident on one multiprocessor.
MAX_CLUSTER_BLOCKS_PER_SM = 8


@dataclass(frozen=True)
class EmulatedDevice:
    """One emulated device; ``memory_bytes`` is what it says it has, taken from the host only as it is touched."""

    arch: str
    compute_capability: tuple[int, int]
    name: str
    memory_bytes: int
    attributes: Mapping[DeviceAttribute, int]
    max_blocks_per_sm: int
    cluster_groups: tuple[int, ...]
    copy_bytes_per_ns: int


def emulated_device(arch: str) -> EmulatedDevice:
    """The device for ``sm_80``, ``sm_90a``, ``sm_120``...; raises ArchMismatchError for another name."""
    spec = spec_named(arch)
    major, minor = spec.compute_capability
    board = spec.board
    attributes = {
        DeviceAttribute.MAX_THREADS_PER_BLOCK: MAX_THREADS_PER_BLOCK,
        DeviceAttribute.MAX_GRID_DIM_X: MAX_GRID[0],
        DeviceAttribute.MAX_GRID_DIM_Y: MAX_GRID[1],
        DeviceAttribute.MAX_GRID_DIM_Z: MAX_GRID[2],
        DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK: DEFAULT_SHARED_BYTES,
        DeviceAttribute.WARP_SIZE: 32,
        DeviceAttribute.MAX_REGISTERS_PER_BLOCK: REGISTERS_PER_SM,
        DeviceAttribute.CLOCK_RATE_KHZ: board.clock_khz,
        DeviceAttribute.MULTIPROCESSOR_COUNT: spec.sm_count,
        DeviceAttribute.MEMORY_CLOCK_RATE_KHZ: board.memory_clock_khz,
        DeviceAttribute.GLOBAL_MEMORY_BUS_WIDTH_BITS: board.bus_bits,
        DeviceAttribute.L2_CACHE_BYTES: spec.l2_bytes,
        DeviceAttribute.MAX_THREADS_PER_MULTIPROCESSOR: spec.threads_per_sm,
        DeviceAttribute.COMPUTE_CAPABILITY_MAJOR: major,
        DeviceAttribute.COMPUTE_CAPABILITY_MINOR: minor,
        DeviceAttribute.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: spec.shared_bytes_per_sm,
        DeviceAttribute.MAX_REGISTERS_PER_MULTIPROCESSOR: REGISTERS_PER_SM,
        DeviceAttribute.COOPERATIVE_LAUNCH: 1,
        DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: spec.shared_bytes_per_block,
        DeviceAttribute.MEMORY_POOLS_SUPPORTED: 1,
        DeviceAttribute.CLUSTER_LAUNCH: int(major >= 9),
    }
    return EmulatedDevice(
        arch=arch,
        compute_capability=spec.compute_capability,
        name=f"lowdnn emulated {arch}",
        memory_bytes=board.memory_bytes,
        attributes=attributes,
        max_blocks_per_sm=spec.max_blocks_per_sm,
        cluster_groups=spec.cluster_groups or (_GPC,) * (spec.sm_count // _GPC),
        copy_bytes_per_ns=int(spec.copy_bytes_per_s / 1e9),
    )
