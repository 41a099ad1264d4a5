"""GeForce RTX 5090.

Source: NVIDIA RTX Blackwell GPU Architecture (whitepaper), appendix A. RTX PRO cards accumulate in fp32 at twice this
rate.
"""

from __future__ import annotations

from lowdnn.arch.specs import COPIED_SHARE, UNMEASURED, ArchSpec, Board, mma_rates

_BOARD = Board("NVIDIA GeForce RTX 5090", 2_407_000, 14_001_000, 512, 32 << 30)
SPEC = ArchSpec(
    name="sm_120",
    compute_capability=(12, 0),
    board=_BOARD,
    sm_count=170,
    clock_hz=1e3 * _BOARD.clock_khz,
    flops_per_clock=mma_rates(f32=256, f64=4, f16=512, tf32=256, int8=2048),
    attained=UNMEASURED,
    copy_bytes_per_s=COPIED_SHARE * _BOARD.bytes_per_s,
    l2_bytes=96 << 20,
    shared_bytes_per_block=99 << 10,
    shared_bytes_per_sm=100 << 10,
    threads_per_sm=1536,
    max_blocks_per_sm=24,
    spills_early=True,
)
