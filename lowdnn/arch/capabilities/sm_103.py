"""B300.

Source: NVIDIA Blackwell Ultra datasheet (1.25 TFLOP/s of fp64, 75 of fp32, 0.15 POP/s of int8, 8 TB/s).
Multiprocessors, L2 and clock are not published for the product: those of the B200 are the lower bound. The rate of
mma.sync as for 10.0.
"""

from __future__ import annotations

from lowdnn.arch.specs import COPIED_SHARE, UNMEASURED, ArchSpec, Board, mma_rates

_BOARD = Board("NVIDIA B300", 1_965_000, 3_906_000, 8192, 270 << 30)
SPEC = ArchSpec(
    name="sm_103",
    compute_capability=(10, 3),
    board=_BOARD,
    sm_count=148,
    clock_hz=1e3 * _BOARD.clock_khz,
    flops_per_clock=mma_rates(f32=256, f64=4, f16=2048, tf32=1024, int8=512),
    attained=UNMEASURED,
    copy_bytes_per_s=COPIED_SHARE * _BOARD.bytes_per_s,
    l2_bytes=132_644_864,
    shared_bytes_per_block=227 << 10,
    shared_bytes_per_sm=228 << 10,
    threads_per_sm=2048,
    max_blocks_per_sm=32,
    spills_early=True,
)
