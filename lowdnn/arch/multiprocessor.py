"""Facts that every multiprocessor shares since compute capability 8.0.

Source: CUDA Programming Guide, "Features and Technical Specifications"; granules of allocation as the driver has them,
which ``tests/engines/model/test_occupancy.py`` asks on a GPU.
"""

from __future__ import annotations

from typing import Final

#: Threads of a warp.
WARP_SIZE: Final = 32
#: Warp schedulers. Each issues an instruction of one warp in a clock, and has a quarter of the registers.
WARP_SCHEDULERS: Final = 4
#: Registers, which are those that a block may have, too.
REGISTERS_PER_SM: Final = 65536
#: Registers that a thread may have.
MAX_THREAD_REGISTERS: Final = 255
#: Registers by multiples of which a thread has them, at launch and where warpgroups hand some over (PTX ISA,
#: ``setmaxnreg``).
THREAD_REGISTER_GRANULE: Final = 8
#: Registers that a thread of a warpgroup can use after that, at most.
MAX_HANDED_REGISTERS: Final = 240
#: Registers by multiples of which a warp gets its own.
WARP_REGISTER_GRANULE: Final = 256
#: Threads that a block may have.
MAX_BLOCK_THREADS: Final = 1024
#: Bytes of shared memory by multiples of which a block gets its own.
SHARED_GRANULE_BYTES: Final = 128
#: Bytes of shared memory that the device keeps for itself, for each block.
RESERVED_SHARED_BYTES: Final = 1024
#: Bytes of shared memory that are read or written in a clock.
SHARED_BYTES_PER_CLOCK: Final = 128
#: Bytes of device memory that are read or written at least.
SECTOR_BYTES: Final = 32
