"""How many blocks of a kernel a multiprocessor holds at a time.

    blocks    = min(by warps, by registers, by shared memory, the device's most)
    by warps  = warps of the multiprocessor / warps of a block
    registers = whole warps on each of the four schedulers, which have a quarter of the registers each; a warp gets its
                own in multiples of 256
    shared    = a multiprocessor's shared memory / (a block's, and 1 KiB of the device's own, in multiples of 128 bytes)

All divisions are rounded down. So counts the driver (``cuOccupancyMaxActiveBlocksPerMultiprocessor``), which a test
asks on a GPU.
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

#: A number, or one for each of many candidates.
CountT = TypeVar("CountT", int, NDArray[np.int64])

#: Blocks of a cluster up to which clusters find room on every multiprocessor.
_SMALL_CLUSTER: Final = 2


def resident_blocks(arch: ArchSpec, threads: int, registers: int = 0, shared_bytes: int = 0) -> int:
    """Blocks of ``threads`` threads with ``registers`` registers each and ``shared_bytes`` of shared memory, at most.

    registers, shared_bytes: static ones included; 0 where they do not limit the blocks.
    """
    blocks = min(arch.threads_per_sm // WARP_SIZE // -(-threads // WARP_SIZE), arch.max_blocks_per_sm)
    if registers:
        blocks = min(blocks, blocks_by_registers(registers, threads))
    return min(blocks, blocks_by_shared(arch, shared_bytes)) if shared_bytes else blocks


def blocks_by_registers(registers: int, threads: int) -> int:
    """Blocks for which any multiprocessor has registers; a thread has ``registers``, at least 1."""
    of_warp = -(-registers * WARP_SIZE // WARP_REGISTER_GRANULE) * WARP_REGISTER_GRANULE
    return REGISTERS_PER_SM // WARP_SCHEDULERS // of_warp * WARP_SCHEDULERS // -(-threads // WARP_SIZE)


def launched_registers(threads: int, blocks: int = 1) -> int:
    """The most registers of a thread with which a multiprocessor holds ``blocks`` blocks of ``threads`` threads."""
    return _whole(min(REGISTERS_PER_SM // (threads * blocks), MAX_THREAD_REGISTERS))


def consumer_registers(launched: int, consumers: int, kept: int) -> int:
    """Registers of a thread of each of ``consumers`` warpgroups, all as large as the producer beside them, whose
    threads keep ``kept`` of the ``launched`` registers."""
    return min(_whole((launched * (1 + consumers) - kept) // consumers), MAX_HANDED_REGISTERS)


def blocks_by_shared(arch: ArchSpec, shared_bytes: CountT) -> CountT:
    """Blocks for which a multiprocessor has shared memory; none where a block has more than it may have."""
    taken = -(-(shared_bytes + RESERVED_SHARED_BYTES) // SHARED_GRANULE_BYTES) * SHARED_GRANULE_BYTES
    return arch.shared_bytes_per_sm // taken * (shared_bytes <= arch.shared_bytes_per_block)


def shared_room(arch: ArchSpec, blocks: int) -> int:
    """The most bytes of shared memory with which a multiprocessor holds ``blocks`` blocks."""
    share = arch.shared_bytes_per_sm // blocks // SHARED_GRANULE_BYTES * SHARED_GRANULE_BYTES
    return min(arch.shared_bytes_per_block, share - RESERVED_SHARED_BYTES)


def clustered_sms(sm_count: int, cluster: int) -> int:
    """Multiprocessors that clusters of ``cluster`` blocks find room on at once, with one block on each."""
    return sm_count if cluster <= _SMALL_CLUSTER else max(int(sm_count * CLUSTERED_SHARE), 1)


def _whole(registers: int) -> int:
    return registers // THREAD_REGISTER_GRANULE * THREAD_REGISTER_GRANULE
