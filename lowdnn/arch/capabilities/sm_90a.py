"""H200 SXM.

Source: NVIDIA H100 Tensor Core GPU Architecture (whitepaper), table 2 and 3; H200 datasheet; clocks, L2 and bandwidth
as measured.
"""

from __future__ import annotations

from lowdnn.arch.specs import ArchSpec, Board, mma_rates
from lowdnn.plan import MathUnit

SPEC = ArchSpec(
    name="sm_90a",
    compute_capability=(9, 0),
    board=Board("NVIDIA H200", 1_980_000, 3_201_000, 6144, 141 << 30),
    sm_count=132,
    clock_hz=1.6e9,
    flops_per_clock={
        **mma_rates(f32=256, f64=128, f16=4096, tf32=2048, int8=8192),
        MathUnit.WGMMA_F16: 4096,
        MathUnit.WGMMA_TF32: 2048,
        MathUnit.WGMMA_TF32X3: 2048,
        MathUnit.WGMMA_FP8: 8192,
        MathUnit.WGMMA_INT8: 8192,
    },
    # Tensor cores as measured on an H200. MMA with matmul_mma at 4096^3 (bf16: 450 TFLOP/s): mma.sync feeds this
    # generation's tensor cores at about half their rate. WGMMA with matmul_wgmma at 8192^3. WGMMA_TF32X3 by tiles of
    # conv_fprop_wgmma_tf32x3 for layers of VGG-16, which reach more than plain TF32. The FMA units' shares are
    # estimates.
    attained={
        MathUnit.NONE: 0.5,
        MathUnit.FMA_F32: 0.6,
        MathUnit.FMA_F64: 0.6,
        MathUnit.MMA_F16: 0.55,
        MathUnit.MMA_TF32: 0.3,
        MathUnit.MMA_INT8: 0.55,
        MathUnit.WGMMA_F16: 0.88,
        MathUnit.WGMMA_TF32: 0.88,
        MathUnit.WGMMA_TF32X3: 0.967,
        MathUnit.WGMMA_FP8: 0.85,
        MathUnit.WGMMA_INT8: 0.85,
    },
    copy_bytes_per_s=4.3e12,
    l2_bytes=60 << 20,
    shared_bytes_per_block=227 << 10,
    shared_bytes_per_sm=228 << 10,
    threads_per_sm=2048,
    max_blocks_per_sm=32,
    # As an H200 answers when it is asked for clusters; those of two fit on pairs beside these groups as well.
    cluster_groups=(16, 16, 16, 16, 16, 16, 16, 12),
)
