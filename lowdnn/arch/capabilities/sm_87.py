"""Jetson AGX Orin 64 GB.

Source: NVIDIA Jetson AGX Orin Series Technical Brief, table 1: 5.3 TFLOP/s of fp32, 85 dense TOP/s of int8 on the
GPU, 204.8 GB/s. The rates of fp16 and TF32 are not published: taken in the ratios to int8 of 8.0, whose tensor cores
these are.
"""

from __future__ import annotations

from lowdnn.arch.specs import COPIED_SHARE, UNMEASURED, ArchSpec, Board, mma_rates

_BOARD = Board("Jetson AGX Orin 64 GB", 1_300_000, 3_200_000, 256, 64 << 30)
SPEC = ArchSpec(
    name="sm_87",
    compute_capability=(8, 7),
    board=_BOARD,
    sm_count=16,
    clock_hz=1e3 * _BOARD.clock_khz,
    flops_per_clock=mma_rates(f32=256, f64=4, f16=2048, tf32=1024, int8=4096),
    attained=UNMEASURED,
    copy_bytes_per_s=COPIED_SHARE * _BOARD.bytes_per_s,
    l2_bytes=4 << 20,
    shared_bytes_per_block=163 << 10,
    shared_bytes_per_sm=164 << 10,
    threads_per_sm=1536,
    max_blocks_per_sm=16,
)
