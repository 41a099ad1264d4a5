"""Jetson T5000 (Thor).

Source: NVIDIA Jetson Thor Series Modules datasheet (2560 cores, 1.57 GHz, 273 GB/s); multiprocessors and L2 as its
driver reports them. The rates of mma.sync are not published: that of 8.0 is the lower bound, of int8 that of 10.3.
"""

from __future__ import annotations

from lowdnn.arch.specs import COPIED_SHARE, UNMEASURED, ArchSpec, Board, mma_rates

_BOARD = Board("Jetson T5000", 1_575_000, 4_266_000, 256, 128 << 30)
SPEC = ArchSpec(
    name="sm_110",
    compute_capability=(11, 0),
    board=_BOARD,
    sm_count=20,
    clock_hz=1e3 * _BOARD.clock_khz,
    flops_per_clock=mma_rates(f32=256, f64=4, f16=2048, tf32=1024, int8=512),
    attained=UNMEASURED,
    copy_bytes_per_s=COPIED_SHARE * _BOARD.bytes_per_s,
    l2_bytes=32 << 20,
    shared_bytes_per_block=227 << 10,
    shared_bytes_per_sm=228 << 10,
    threads_per_sm=1536,
    max_blocks_per_sm=24,
    spills_early=True,
)
