"""DGX Spark (GB10).

Source: NVIDIA DGX Spark datasheet (6144 cores, 273 GB/s, 1 PFLOP/s of sparse fp4, which makes the clock); NVIDIA's
talk about GB10 at Hot Chips 2025 (L2 of 24 MB). The rates of mma.sync are not published: those of 12.0 are the lower
bound.
"""

from __future__ import annotations

from lowdnn.arch.specs import COPIED_SHARE, UNMEASURED, ArchSpec, Board, mma_rates

_BOARD = Board("DGX Spark", 2_418_000, 4_266_000, 256, 128 << 30)
SPEC = ArchSpec(
    name="sm_121",
    compute_capability=(12, 1),
    board=_BOARD,
    sm_count=48,
    clock_hz=1e3 * _BOARD.clock_khz,
    flops_per_clock=mma_rates(f32=256, f64=4, f16=512, tf32=256, int8=2048),
    attained=UNMEASURED,
    copy_bytes_per_s=COPIED_SHARE * _BOARD.bytes_per_s,
    l2_bytes=24 << 20,
    shared_bytes_per_block=99 << 10,
    shared_bytes_per_sm=100 << 10,
    threads_per_sm=1536,
    max_blocks_per_sm=24,
    spills_early=True,
)
