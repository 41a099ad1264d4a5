"""Compute capability 8.8, of which no product is published.

Source: the launch bounds that ptxas 13.0 takes for ``sm_88``, for the threads and blocks of a multiprocessor. Nothing
else is published: shared memory and rates are the least of 8.6, 8.7 and 8.9, as lower bounds; clocks, memory,
multiprocessors and L2 are those of 8.7, whose facts the device would have without this file.
"""

from __future__ import annotations

from lowdnn.arch.specs import COPIED_SHARE, UNMEASURED, ArchSpec, Board, mma_rates

_BOARD = Board("device of compute capability 8.8", 1_300_000, 3_200_000, 256, 64 << 30)
SPEC = ArchSpec(
    name="sm_88",
    compute_capability=(8, 8),
    board=_BOARD,
    sm_count=16,
    clock_hz=1e3 * _BOARD.clock_khz,
    flops_per_clock=mma_rates(f32=256, f64=4, f16=512, tf32=256, int8=2048),
    attained=UNMEASURED,
    copy_bytes_per_s=COPIED_SHARE * _BOARD.bytes_per_s,
    l2_bytes=4 << 20,
    shared_bytes_per_block=99 << 10,
    shared_bytes_per_sm=100 << 10,
    threads_per_sm=1536,
    max_blocks_per_sm=16,
)
