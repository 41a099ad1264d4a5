"""A100 SXM 80 GB.

Source: NVIDIA A100 Tensor Core GPU Architecture (whitepaper), table 1 and 4; A100 80 GB datasheet.
"""

from __future__ import annotations

from lowdnn.arch.specs import UNMEASURED, ArchSpec, Board, mma_rates

_BOARD = Board("NVIDIA A100-SXM4-80GB", 1_410_000, 1_593_000, 5120, 80 << 30)
SPEC = ArchSpec(
    name="sm_80",
    compute_capability=(8, 0),
    board=_BOARD,
    sm_count=108,
    clock_hz=1.35e9,
    flops_per_clock=mma_rates(f32=128, f64=64, f16=2048, tf32=1024, int8=4096),
    attained=UNMEASURED,
    copy_bytes_per_s=1.8e12,
    l2_bytes=40 << 20,
    shared_bytes_per_block=163 << 10,
    shared_bytes_per_sm=164 << 10,
    threads_per_sm=2048,
    max_blocks_per_sm=32,
)
