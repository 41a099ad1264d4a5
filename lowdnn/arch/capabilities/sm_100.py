"""B200.

Source: NVIDIA Blackwell Architecture Technical Brief, table 3 (37 TFLOP/s of fp64, 75 of fp32); multiprocessors, L2,
bus and clocks as its driver reports them. The rate of mma.sync, beside tcgen05, is not published: that of 8.0 is the
lower bound.
"""

from __future__ import annotations

from lowdnn.arch.specs import COPIED_SHARE, UNMEASURED, ArchSpec, Board, mma_rates

_BOARD = Board("NVIDIA B200", 1_965_000, 3_996_000, 7680, 178 << 30)
SPEC = ArchSpec(
    name="sm_100",
    compute_capability=(10, 0),
    board=_BOARD,
    sm_count=148,
    clock_hz=1e3 * _BOARD.clock_khz,
    flops_per_clock=mma_rates(f32=256, f64=128, f16=2048, tf32=1024, int8=4096),
    attained=UNMEASURED,
    copy_bytes_per_s=COPIED_SHARE * _BOARD.bytes_per_s,
    l2_bytes=132_644_864,
    shared_bytes_per_block=227 << 10,
    shared_bytes_per_sm=228 << 10,
    threads_per_sm=2048,
    max_blocks_per_sm=32,
    spills_early=True,
)
