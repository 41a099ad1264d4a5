"""Every operation and every descriptor class that operations are made of: the one list to extend by a new operation."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from lowdnn.ops.bn_backward_weights import BnBackwardWeights
from lowdnn.ops.bn_finalize import BnFinalize
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import ELEMENT_TYPES, attributes_of

OPERATIONS: tuple[type, ...] = (
    ConvolutionForward,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    MatmulOperation,
    PointwiseOperation,
    ReductionOperation,
    GenStats,
    NormForward,
    NormBackward,
    Softmax,
    BnFinalize,
    BnBackwardWeights,
)

DESCRIPTORS: tuple[type, ...] = (Tensor, Convolution, Matmul, Pointwise, Reduction, *OPERATIONS)


def enums() -> Iterator[type[Enum]]:
    """The enums that the descriptors' attributes take."""
    taken = {kind for cls in DESCRIPTORS for declared in attributes_of(cls).values() for kind in declared.types}
    for kind in sorted(taken & ELEMENT_TYPES.keys()):
        element = ELEMENT_TYPES[kind]
        if issubclass(element, Enum):
            yield element
