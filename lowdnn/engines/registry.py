"""Every engine of lowdnn by its global index, which is given once and never reused: append only.

The entries hold what is needed before an engine's module is imported, at its first use (``engine_set``).
"""

from __future__ import annotations

from lowdnn.engines.base import Engine
from lowdnn.engines.engine_set import EngineEntry, EngineSet
from lowdnn.ops.b2b_causal_conv1d_backward import B2BCausalConv1dBackward
from lowdnn.ops.b2b_causal_conv1d_forward import B2BCausalConv1dForward
from lowdnn.ops.bit_mask import PackBits, UnpackBits
from lowdnn.ops.block_mask import BlockMask
from lowdnn.ops.block_scale_dequantize import BlockScaleDequantize
from lowdnn.ops.block_scale_quantize import BlockScaleQuantize
from lowdnn.ops.bn_backward_weights import BnBackwardWeights
from lowdnn.ops.bn_finalize import BnFinalize
from lowdnn.ops.causal_conv1d_backward import CausalConv1dBackward
from lowdnn.ops.causal_conv1d_forward import CausalConv1dForward
from lowdnn.ops.contract_band_matrix import ContractBandMatrix
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.custom_reduction import CustomReduction
from lowdnn.ops.divisive_normalization import DivisiveNormalizationBackward, DivisiveNormalizationForward
from lowdnn.ops.expand_band_matrix import ExpandBandMatrix
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.lrn import LrnBackward, LrnForward
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul
from lowdnn.ops.moe_grouped_matmul_backward import MoeGroupedMatmulBackward
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.paged_cache_load import PagedCacheLoad
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.ragged import RaggedMove
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.ops.resample import ResampleOperation
from lowdnn.ops.rng import RngOperation
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_backward_weights import RnnBackwardWeights
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.ops.rope_backward import RopeBackward
from lowdnn.ops.rope_forward import RopeForward
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.softmax import Softmax
from lowdnn.status import BadParamError

#: Engines that ``conv_stem`` folds a first layer for.
_FOLDED = (
    "conv_implicit_gemm_mma",
    "conv_fprop_wgmma",
    "conv_dgrad_wgmma",
    "conv_grouped_mma",
    "conv_wgrad_wgmma",
    "matmul_wgmma",
)

#: Engines that compute the products of ``conv_winograd_*``.
_PRODUCTS = ("matmul_wgmma", "matmul_mma")
#: Engines that compute the products of ``conv_winograd_*_fp32``.
_TRUE_PRODUCTS = ("matmul_wgmma_tf32x3", "matmul_mma_tf32x3", "matmul_simt")

#: Engines in the order in which ``composite`` prefers them if they are equally fast.
_OWN_KERNELS = (
    EngineEntry(
        0,
        "conv_implicit_gemm_mma",
        "conv.implicit_gemm.conv_implicit_gemm_mma.ConvImplicitGemmMma",
        (ConvolutionOperation,),
    ),
    EngineEntry(8, "conv_fprop_wgmma", "conv.wgmma.conv_fprop_wgmma.ConvFpropWgmma", (ConvolutionForward,)),
    EngineEntry(9, "conv_dgrad_wgmma", "conv.wgmma.conv_dgrad_wgmma.ConvDgradWgmma", (ConvolutionBackwardData,)),
    EngineEntry(12, "conv_grouped_mma", "conv.grouped.conv_grouped_mma.ConvGroupedMma", (ConvolutionOperation,)),
    EngineEntry(10, "conv_wgrad_wgmma", "conv.wgmma.conv_wgrad_wgmma.ConvWgradWgmma", (ConvolutionBackwardFilter,)),
    EngineEntry(1, "conv_direct", "conv.direct.conv_direct.ConvDirect", (ConvolutionOperation,)),
    EngineEntry(2, "matmul_mma", "matmul.matmul_mma.MatmulMma", (ConvolutionOperation, MatmulOperation)),
    EngineEntry(3, "matmul_simt", "matmul.matmul_simt.MatmulSimt", (MatmulOperation,)),
    EngineEntry(
        4, "pointwise", "pointwise.pointwise.PointwiseEngine", (PointwiseOperation, RngOperation, ConvolutionOperation)
    ),
    EngineEntry(5, "reduction", "reduction.reduction.ReductionEngine", (ReductionOperation, GenStats)),
    EngineEntry(7, "matmul_wgmma", "matmul.matmul_wgmma.MatmulWgmma", (ConvolutionOperation, MatmulOperation)),
    EngineEntry(11, "conv_depthwise", "conv.depthwise.conv_depthwise.ConvDepthwise", (ConvolutionOperation,)),
    EngineEntry(13, "conv_stem", "conv.stem.conv_stem.ConvStem", (ConvolutionOperation,), (_FOLDED,)),
    EngineEntry(
        14,
        "matmul_prologue_wgmma",
        "matmul.matmul_prologue_wgmma.MatmulPrologueWgmma",
        (ConvolutionOperation, MatmulOperation),
    ),
    EngineEntry(29, "resample", "resample.resample.ResampleEngine", (ResampleOperation,)),
    EngineEntry(
        28,
        "resample_reduction",
        "resample.resample_reduction.ResampleReduction",
        (ResampleOperation,),
        ("reduction", "pointwise"),
    ),
    EngineEntry(20, "norm_rows", "norm.norm_rows.NormRows", (NormForward, NormBackward)),
    EngineEntry(21, "softmax", "softmax.softmax.SoftmaxEngine", (Softmax, ReductionOperation)),
    EngineEntry(
        22, "batch_norm", "norm.batch_norm.BatchNorm", (NormForward, NormBackward, BnFinalize, BnBackwardWeights)
    ),
    EngineEntry(16, "moe_matmul_simt", "moe.moe_matmul_simt.MoeMatmulSimt", (MoeGroupedMatmul,)),
    EngineEntry(17, "moe_wgrad_simt", "moe.moe_wgrad_simt.MoeWgradSimt", (MoeGroupedMatmulBackward,)),
    EngineEntry(18, "moe_matmul_wgmma", "moe.moe_matmul_wgmma.MoeMatmulWgmma", (MoeGroupedMatmul,)),
    EngineEntry(19, "moe_wgrad_wgmma", "moe.moe_wgrad_wgmma.MoeWgradWgmma", (MoeGroupedMatmulBackward,)),
    EngineEntry(24, "transform", "transform.transform.Transform", ()),
    EngineEntry(25, "block_scale", "block_scale.block_scale.BlockScale", (BlockScaleDequantize, BlockScaleQuantize)),
    EngineEntry(26, "band_matrix", "band_matrix.band_matrix.BandMatrix", (ContractBandMatrix, ExpandBandMatrix)),
    EngineEntry(
        15,
        "conv_prologue_wgmma",
        "conv.wgmma.conv_prologue_wgmma.ConvPrologueWgmma",
        (ConvolutionForward, ConvolutionBackwardData),
    ),
    EngineEntry(23, "matmul_list_wgmma", "matmul.matmul_list_wgmma.MatmulListWgmma", (MatmulOperation,)),
    EngineEntry(27, "moe_matmul_mma", "moe.moe_matmul_mma.MoeMatmulMma", (MoeGroupedMatmul,)),
    EngineEntry(30, "attention_mma", "attention.attention_mma.AttentionMma", (Softmax,)),
    EngineEntry(31, "attention_backward_mma", "attention.attention_backward_mma.AttentionBackwardMma", (SdpaBackward,)),
    EngineEntry(32, "attention_wgmma", "attention.attention_wgmma.AttentionWgmma", (Softmax,)),
    EngineEntry(34, "attention_decode", "attention.attention_decode.AttentionDecode", (Softmax,)),
    EngineEntry(
        33, "attention_backward_wgmma", "attention.attention_backward_wgmma.AttentionBackwardWgmma", (SdpaBackward,)
    ),
    EngineEntry(35, "rope", "rope.rope.Rope", (RopeForward, RopeBackward)),
    EngineEntry(36, "paged_cache", "paged_cache.paged_cache.PagedCache", (PagedCacheLoad,)),
    EngineEntry(37, "block_mask", "block_mask.block_mask.BlockMaskEngine", (BlockMask,)),
    EngineEntry(
        39,
        "conv_narrow_mma",
        "conv.narrow.conv_narrow_mma.ConvNarrowMma",
        (ConvolutionForward, ConvolutionBackwardData),
    ),
    EngineEntry(
        40, "conv_stem_mma", "conv.stem.conv_stem_mma.ConvStemMma", (ConvolutionForward, ConvolutionBackwardData)
    ),
    EngineEntry(
        42, "conv_stem_dgrad_mma", "conv.stem.conv_stem_dgrad_mma.ConvStemDgradMma", (ConvolutionBackwardData,)
    ),
    EngineEntry(
        41, "conv_stem_wgrad_mma", "conv.stem.conv_stem_wgrad_mma.ConvStemWgradMma", (ConvolutionBackwardFilter,)
    ),
    EngineEntry(45, "bit_mask", "bit_mask.bit_mask.BitMask", (PackBits, UnpackBits)),
    EngineEntry(
        38,
        "conv_wgrad_packed",
        "conv.packed.conv_wgrad_packed.ConvWgradPacked",
        (ConvolutionBackwardFilter,),
        (("conv_wgrad_wgmma", "matmul_wgmma"), "reduction"),
    ),
    EngineEntry(60, "matmul_mma_tf32x3", "matmul.matmul_mma.MatmulMmaTf32x3", (ConvolutionOperation, MatmulOperation)),
    EngineEntry(
        61,
        "conv_implicit_gemm_mma_tf32x3",
        "conv.implicit_gemm.conv_implicit_gemm_mma.ConvImplicitGemmMmaTf32x3",
        (ConvolutionOperation,),
    ),
    EngineEntry(
        66,
        "matmul_wgmma_tf32x3",
        "matmul.matmul_wgmma.MatmulWgmmaTf32x3",
        (ConvolutionOperation, MatmulOperation),
    ),
    EngineEntry(
        67, "conv_fprop_wgmma_tf32x3", "conv.wgmma.conv_fprop_wgmma.ConvFpropWgmmaTf32x3", (ConvolutionForward,)
    ),
    EngineEntry(
        68, "conv_dgrad_wgmma_tf32x3", "conv.wgmma.conv_dgrad_wgmma.ConvDgradWgmmaTf32x3", (ConvolutionBackwardData,)
    ),
    EngineEntry(
        69,
        "conv_wgrad_wgmma_tf32x3",
        "conv.wgmma.conv_wgrad_wgmma.ConvWgradWgmmaTf32x3",
        (ConvolutionBackwardFilter,),
    ),
    EngineEntry(43, "ragged", "ragged.ragged.Ragged", (RaggedMove,)),
    EngineEntry(48, "custom_reduction", "reduction.custom_reduction.CustomReductionEngine", (CustomReduction,)),
    EngineEntry(46, "lrn", "lrn.lrn.LrnEngine", (LrnForward, LrnBackward)),
    EngineEntry(
        47,
        "divisive_normalization",
        "lrn.divisive.DivisiveNormalization",
        (DivisiveNormalizationForward, DivisiveNormalizationBackward),
    ),
    EngineEntry(
        49,
        "rnn_stepwise",
        "rnn.rnn_stepwise.RnnStepwise",
        (RnnForward, RnnBackwardData, RnnBackwardWeights),
        (("matmul_wgmma", "matmul_mma", "matmul_simt", "pointwise", "reduction", "transform"),),
    ),
    EngineEntry(
        51,
        "rnn_step_wgmma",
        "rnn.rnn_step_wgmma.RnnStepWgmma",
        (RnnForward, RnnBackwardData),
        (("matmul_wgmma", "matmul_mma", "matmul_simt", "pointwise", "reduction", "transform"),),
    ),
    EngineEntry(
        50,
        "rnn_persistent",
        "rnn.rnn_persistent.RnnPersistent",
        (RnnForward, RnnBackwardData),
        (("matmul_wgmma", "matmul_mma", "matmul_simt", "pointwise", "reduction", "transform"),),
    ),
    EngineEntry(52, "causal_conv1d", "conv.sequence.causal_conv1d.CausalConv1dEngine", (CausalConv1dForward,)),
    EngineEntry(
        53,
        "causal_conv1d_backward",
        "conv.sequence.causal_conv1d_backward.CausalConv1dBackwardEngine",
        (CausalConv1dBackward,),
    ),
    EngineEntry(
        72,
        "b2b_causal_conv1d",
        "conv.sequence.b2b_causal_conv1d.B2BCausalConv1dEngine",
        (B2BCausalConv1dForward,),
    ),
    EngineEntry(
        73,
        "b2b_causal_conv1d_backward",
        "conv.sequence.b2b_causal_conv1d_backward.B2BCausalConv1dBackwardEngine",
        (B2BCausalConv1dBackward,),
    ),
)

_SINGLE = (
    *_OWN_KERNELS,
    EngineEntry(
        44,
        "attention_backward_parts",
        "composite.attention_backward_parts.AttentionBackwardParts",
        (SdpaBackward,),
        (tuple(entry.name for entry in _OWN_KERNELS),),
    ),
)

#: Engines of convolutions that transform their operands, within the tolerance of convolutions.
_TRANSFORMING = (
    EngineEntry(54, "conv_fft", "conv.fft.conv_fft.ConvFft", (ConvolutionOperation,)),
    *(
        EngineEntry(index, name, f"conv.winograd.conv_winograd.{home}", (ConvolutionOperation,), (_TRUE_PRODUCTS,))
        for index, name, home in (
            (64, "conv_winograd_2x2_fp32", "ConvWinograd2x2Fp32"),
            (65, "conv_winograd_4x4_fp32", "ConvWinograd4x4Fp32"),
        )
    ),
)

#: Engines that run where somebody asks for them: every ``OptIn``.
_ON_REQUEST = (
    *(
        EngineEntry(index, name, f"conv.winograd.conv_winograd.{home}", (ConvolutionOperation,), (_PRODUCTS,))
        for index, name, home in (
            (62, "conv_winograd_2x2", "ConvWinograd2x2"),
            (63, "conv_winograd_4x4", "ConvWinograd4x4"),
        )
    ),
    *(
        EngineEntry(
            index,
            name,
            f"conv.winograd.conv_winograd_fused.{home}",
            (ConvolutionForward, ConvolutionBackwardData),
        )
        for index, name, home in (
            (70, "conv_winograd_fused_2x2", "ConvWinogradFused2x2"),
            (71, "conv_winograd_fused_2x2_fp32", "ConvWinogradFused2x2Fp32"),
        )
    ),
)

_COMPOSITE = EngineEntry(
    6,
    "composite",
    "composite.composite.Composite",
    (),
    (tuple(entry.name for entry in _SINGLE), tuple(entry.name for entry in _TRANSFORMING)),
)

#: All engines in the order of their indices; ``composite``, the last resort, builds on all but those on request.
ENGINES = EngineSet(sorted((*_SINGLE, *_TRANSFORMING, *_ON_REQUEST, _COMPOSITE), key=lambda entry: entry.index))


def engine_named(name: str) -> Engine:
    """The engine with this name; raises BadParamError if there is none."""
    engine = ENGINES.named(name)
    if engine is None:
        known = ", ".join(entry.name for entry in ENGINES.entries)
        raise BadParamError.at("engine.name", expected=f"one of {known}", got=repr(name))
    return engine


def engine_at(index: int) -> Engine:
    """The engine with this global index; raises BadParamError if there is none."""
    engine = ENGINES.at(index)
    if engine is None:
        known = ", ".join(f"{entry.index} ({entry.name})" for entry in ENGINES.entries)
        raise BadParamError.at("engine.global_index", expected=f"one of {known}", got=index)
    return engine
