"""Every engine of lowdnn, by its global index. Append only: an index is given once and never reused."""

from __future__ import annotations

from lowdnn.engines.attention.attention_backward_mma import AttentionBackwardMma
from lowdnn.engines.attention.attention_backward_wgmma import AttentionBackwardWgmma
from lowdnn.engines.attention.attention_decode import AttentionDecode
from lowdnn.engines.attention.attention_mma import AttentionMma
from lowdnn.engines.attention.attention_wgmma import AttentionWgmma
from lowdnn.engines.band_matrix.band_matrix import BandMatrix
from lowdnn.engines.base import Engine
from lowdnn.engines.bit_mask.bit_mask import BitMask
from lowdnn.engines.block_mask.block_mask import BlockMaskEngine
from lowdnn.engines.block_scale.block_scale import BlockScale
from lowdnn.engines.composite.attention_backward_parts import AttentionBackwardParts
from lowdnn.engines.composite.composite import Composite
from lowdnn.engines.conv.depthwise.conv_depthwise import ConvDepthwise
from lowdnn.engines.conv.direct.conv_direct import ConvDirect
from lowdnn.engines.conv.grouped.conv_grouped_mma import ConvGroupedMma
from lowdnn.engines.conv.implicit_gemm.conv_implicit_gemm_mma import ConvImplicitGemmMma
from lowdnn.engines.conv.narrow.conv_narrow_mma import ConvNarrowMma
from lowdnn.engines.conv.packed.conv_wgrad_packed import ConvWgradPacked
from lowdnn.engines.conv.stem.conv_stem import ConvStem
from lowdnn.engines.conv.stem.conv_stem_dgrad_mma import ConvStemDgradMma
from lowdnn.engines.conv.stem.conv_stem_mma import ConvStemMma
from lowdnn.engines.conv.stem.conv_stem_wgrad_mma import ConvStemWgradMma
from lowdnn.engines.conv.wgmma.conv_dgrad_wgmma import ConvDgradWgmma
from lowdnn.engines.conv.wgmma.conv_fprop_wgmma import ConvFpropWgmma
from lowdnn.engines.conv.wgmma.conv_prologue_wgmma import ConvPrologueWgmma
from lowdnn.engines.conv.wgmma.conv_wgrad_wgmma import ConvWgradWgmma
from lowdnn.engines.matmul.matmul_list_wgmma import MatmulListWgmma
from lowdnn.engines.matmul.matmul_mma import MatmulMma
from lowdnn.engines.matmul.matmul_prologue_wgmma import MatmulPrologueWgmma
from lowdnn.engines.matmul.matmul_simt import MatmulSimt
from lowdnn.engines.matmul.matmul_wgmma import MatmulWgmma
from lowdnn.engines.moe.moe_matmul_mma import MoeMatmulMma
from lowdnn.engines.moe.moe_matmul_simt import MoeMatmulSimt
from lowdnn.engines.moe.moe_matmul_wgmma import MoeMatmulWgmma
from lowdnn.engines.moe.moe_wgrad_simt import MoeWgradSimt
from lowdnn.engines.moe.moe_wgrad_wgmma import MoeWgradWgmma
from lowdnn.engines.norm.batch_norm import BatchNorm
from lowdnn.engines.norm.norm_rows import NormRows
from lowdnn.engines.paged_cache.paged_cache import PagedCache
from lowdnn.engines.pointwise.pointwise import PointwiseEngine
from lowdnn.engines.ragged.ragged import Ragged
from lowdnn.engines.reduction.reduction import ReductionEngine
from lowdnn.engines.resample.resample import ResampleEngine
from lowdnn.engines.resample.resample_reduction import ResampleReduction
from lowdnn.engines.rope.rope import Rope
from lowdnn.engines.softmax.softmax import SoftmaxEngine
from lowdnn.engines.transform.transform import Transform
from lowdnn.status import BadParamError

_MATMUL_WGMMA, _CONV_WGRAD_WGMMA = MatmulWgmma(), ConvWgradWgmma()

#: Engines that ``conv_stem`` folds a first layer for beside ``_MATMUL_WGMMA``.
_CONVOLUTIONS: tuple[Engine, ...] = (
    ConvImplicitGemmMma(),
    ConvFpropWgmma(),
    ConvDgradWgmma(),
    ConvGroupedMma(),
    _CONV_WGRAD_WGMMA,
)

#: The engines that take global pooling too.
_REDUCTION, _POINTWISE = ReductionEngine(), PointwiseEngine()

_OWN_KERNELS: tuple[Engine, ...] = (
    *_CONVOLUTIONS,
    ConvDirect(),
    MatmulMma(),
    MatmulSimt(),
    _POINTWISE,
    _REDUCTION,
    _MATMUL_WGMMA,
    ConvDepthwise(),
    ConvStem((*_CONVOLUTIONS, _MATMUL_WGMMA)),
    MatmulPrologueWgmma(),
    ResampleEngine(),
    ResampleReduction(_REDUCTION, _POINTWISE),
    NormRows(),
    SoftmaxEngine(),
    BatchNorm(),
    MoeMatmulSimt(),
    MoeWgradSimt(),
    MoeMatmulWgmma(),
    MoeWgradWgmma(),
    Transform(),
    BlockScale(),
    BandMatrix(),
    ConvPrologueWgmma(),
    MatmulListWgmma(),
    MoeMatmulMma(),
    AttentionMma(),
    AttentionBackwardMma(),
    AttentionWgmma(),
    AttentionDecode(),
    AttentionBackwardWgmma(),
    Rope(),
    PagedCache(),
    BlockMaskEngine(),
    ConvNarrowMma(),
    ConvStemMma(),
    ConvStemDgradMma(),
    ConvStemWgradMma(),
    BitMask(),
    ConvWgradPacked((_CONV_WGRAD_WGMMA, _MATMUL_WGMMA), _REDUCTION),
    Ragged(),
)

_SINGLE: tuple[Engine, ...] = (*_OWN_KERNELS, AttentionBackwardParts(_OWN_KERNELS))

#: All engines in the order of their indices; ``composite``, the last resort, builds on the others.
ENGINES: tuple[Engine, ...] = tuple(sorted((*_SINGLE, Composite(_SINGLE)), key=lambda engine: engine.index))


def engine_named(name: str) -> Engine:
    """The engine with this name; raises BadParamError."""
    for engine in ENGINES:
        if engine.name == name:
            return engine
    raise BadParamError.at("engine.name", expected=f"one of {', '.join(e.name for e in ENGINES)}", got=repr(name))


def engine_at(index: int) -> Engine:
    """The engine with this global index; raises BadParamError."""
    for engine in ENGINES:
        if engine.index == index:
            return engine
    known = ", ".join(f"{engine.index} ({engine.name})" for engine in ENGINES)
    raise BadParamError.at("engine.global_index", expected=f"one of {known}", got=index)
