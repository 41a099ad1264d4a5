"""The number of a kernel's blocks that are resident on a multiprocessor at once.

    blocks    = min(by warps, by registers, by shared memory, the device's limit)
    by warps  = warps of the multiprocessor / warps of a block
    registers = whole warps on each of the four schedulers, which have a quarter of the registers each; registers are
                allocated to a warp in multiples of 256
    shared    = the multiprocessor's shared memory / (the block's, plus 1 KiB reserved by the device, rounded up to a
                multiple of 128 bytes)

All divisions round down. The driver counts the same way (``cuOccupancyMaxActiveBlocksPerMultiprocessor``), which a test
checks on a GPU.
"""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.arch.multiprocessor import (
    MAX_HANDED_REGISTERS,
    MAX_THREAD_REGISTERS,
    REGISTERS_PER_SM,
    RESERVED_SHARED_BYTES,
    SHARED_GRANULE_BYTES,
    THREAD_REGISTER_GRANULE,
    WARP_REGISTER_GRANULE,
    WARP_SCHEDULERS,
    WARP_SIZE,
)
from lowdnn.arch.specs import CLUSTERED_SHARE, ArchSpec
from lowdnn.status import LowdnnError, SharedMemoryInsufficientError

#: A number, or an array with one element for each of many candidates.
CountT = TypeVar("CountT", int, NDArray[np.int64])

#: Most blocks of a cluster for which every multiprocessor has room.
_SMALL_CLUSTER: Final = 2


def resident_blocks(arch: ArchSpec, threads: int, registers: int = 0, shared_bytes: int = 0) -> int:
    """The most resident blocks of ``threads`` threads with ``registers`` registers each and ``shared_bytes`` bytes.

    registers: 0 if they do not limit the blocks.  shared_bytes: static and dynamic shared memory; 0 likewise.
    """
    blocks = min(arch.threads_per_sm // WARP_SIZE // -(-threads // WARP_SIZE), arch.max_blocks_per_sm)
    if registers:
        blocks = min(blocks, blocks_by_registers(registers, threads))
    return min(blocks, blocks_by_shared(arch, shared_bytes)) if shared_bytes else blocks


def blocks_by_registers(registers: int, threads: int) -> int:
    """Blocks for which a multiprocessor has registers; a thread has ``registers``, at least 1."""
    of_warp = -(-registers * WARP_SIZE // WARP_REGISTER_GRANULE) * WARP_REGISTER_GRANULE
    return REGISTERS_PER_SM // WARP_SCHEDULERS // of_warp * WARP_SCHEDULERS // -(-threads // WARP_SIZE)


def launched_registers(threads: int, blocks: int = 1) -> int:
    """The most registers of a thread with which a multiprocessor holds ``blocks`` blocks of ``threads`` threads."""
    return _whole(min(REGISTERS_PER_SM // (threads * blocks), MAX_THREAD_REGISTERS))


def consumer_registers(launched: int, consumers: int, kept: int) -> int:
    """Registers of a thread of each of ``consumers`` warpgroups, if each thread of the equally large producer warpgroup
    keeps ``kept`` of the ``launched`` registers.
    """
    return min(_whole((launched * (1 + consumers) - kept) // consumers), MAX_HANDED_REGISTERS)


def blocks_by_shared(arch: ArchSpec, shared_bytes: CountT) -> CountT:
    """Blocks for which a multiprocessor has shared memory; 0 if a block exceeds its limit."""
    taken = -(-(shared_bytes + RESERVED_SHARED_BYTES) // SHARED_GRANULE_BYTES) * SHARED_GRANULE_BYTES
    return arch.shared_bytes_per_sm // taken * (shared_bytes <= arch.shared_bytes_per_block)


def shared_room(arch: ArchSpec, blocks: int) -> int:
    """The most bytes of shared memory of a block with which ``blocks`` blocks are resident on a multiprocessor."""
    share = arch.shared_bytes_per_sm // blocks // SHARED_GRANULE_BYTES * SHARED_GRANULE_BYTES
    return min(arch.shared_bytes_per_block, share - RESERVED_SHARED_BYTES)


def no_tile_fits(arch: ArchSpec) -> LowdnnError:
    """The error of a search whose smallest tile needs more shared memory than ``arch`` has."""
    got = f"{arch.shared_bytes_per_block} bytes, {arch.shared_bytes_per_sm} on a multiprocessor"
    return SharedMemoryInsufficientError.at("arch.shared_bytes_per_block", expected="room for a tile", got=got)


def clustered_sms(sm_count: int, cluster: int) -> int:
    """Multiprocessors that clusters of ``cluster`` blocks occupy at once, with one block on each."""
    return sm_count if cluster <= _SMALL_CLUSTER else max(int(sm_count * CLUSTERED_SHARE), 1)


def _whole(registers: int) -> int:
    return registers // THREAD_REGISTER_GRANULE * THREAD_REGISTER_GRANULE
