"""Every operation and every descriptor class that operations are made of: the one list to extend by a new operation."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from lowdnn.ops.bit_mask import PackBits, UnpackBits
from lowdnn.ops.block_mask import BlockMask
from lowdnn.ops.block_scale_dequantize import BlockScaleDequantize
from lowdnn.ops.block_scale_quantize import BlockScaleQuantize
from lowdnn.ops.bn_backward_weights import BnBackwardWeights
from lowdnn.ops.bn_finalize import BnFinalize
from lowdnn.ops.concat import Concat
from lowdnn.ops.contract_band_matrix import ContractBandMatrix
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.diagonal_band_mask import DiagonalBandMask
from lowdnn.ops.expand_band_matrix import ExpandBandMatrix
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul
from lowdnn.ops.moe_grouped_matmul_backward import MoeGroupedMatmulBackward
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.paged_cache_load import PagedCacheLoad
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.ragged import RaggedLoad, RaggedStore
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.resample import Resample
from lowdnn.ops.resample_backward import ResampleBackward
from lowdnn.ops.resample_forward import ResampleForward
from lowdnn.ops.reshape import Reshape
from lowdnn.ops.rng import Rng, RngOperation
from lowdnn.ops.rope_backward import RopeBackward
from lowdnn.ops.rope_forward import RopeForward
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.sdpa_forward import SdpaForward
from lowdnn.ops.sdpa_fp8_backward import SdpaFp8Backward
from lowdnn.ops.slice import Slice
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.subgraph import Subgraph
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.transpose import Transpose
from lowdnn.schema import ELEMENT_TYPES, attributes_of

#: Operations that the backend has no descriptors of: graphs have them in the place of compound ones, or from the
#: frontend.
PARTS: tuple[type, ...] = (BlockMask, SdpaFp8Backward)

OPERATIONS: tuple[type, ...] = (
    ConvolutionForward,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    MatmulOperation,
    PointwiseOperation,
    ReductionOperation,
    GenStats,
    ResampleForward,
    ResampleBackward,
    NormForward,
    NormBackward,
    Softmax,
    MoeGroupedMatmul,
    MoeGroupedMatmulBackward,
    RngOperation,
    Transpose,
    Reshape,
    Slice,
    Concat,
    BlockScaleQuantize,
    BlockScaleDequantize,
    ExpandBandMatrix,
    ContractBandMatrix,
    BnFinalize,
    BnBackwardWeights,
    SdpaBackward,
    RopeForward,
    RopeBackward,
    PagedCacheLoad,
    *PARTS,
)

DESCRIPTORS: tuple[type, ...] = (Tensor, Convolution, Matmul, Pointwise, Reduction, Resample, Rng, *OPERATIONS)

#: Operations that no descriptor stands for (``graph.expansion``, ``graph.bit_masks``).
INTERNAL: tuple[type, ...] = (RaggedLoad, RaggedStore, PackBits, UnpackBits)

#: What operations are made of that no descriptor stands for.
INNER: tuple[type, ...] = (Subgraph,)

#: Operations that stand for several others (``graph.expansion``), which graphs hold in their place.
Compound = SdpaForward | DiagonalBandMask
COMPOUNDS: tuple[type, ...] = (SdpaForward, DiagonalBandMask)


def enums() -> Iterator[type[Enum]]:
    """The enums that the descriptors' attributes take."""
    taken = {kind for cls in DESCRIPTORS for declared in attributes_of(cls).values() for kind in declared.types}
    for kind in sorted(taken & ELEMENT_TYPES.keys()):
        element = ELEMENT_TYPES[kind]
        if issubclass(element, Enum):
            yield element
