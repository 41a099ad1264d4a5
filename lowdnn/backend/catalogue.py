"""Which descriptors there are: one declaring dataclass for each descriptor type."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.backend.descriptor import Descriptor
from lowdnn.backend.engine_descriptors import (
    EngineChoice,
    EngineConfig,
    EngineHeuristics,
    IntermediateInfo,
    KnobChoice,
    KnobInfo,
    LayoutInfo,
)
from lowdnn.backend.graph_descriptors import DeviceProperties, GraphDescription
from lowdnn.backend.plan_descriptors import ExecutionPlan, VariantPack
from lowdnn.enums import DescriptorType
from lowdnn.ops.convolution import Convolution, ConvolutionForward
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.status import NotSupportedError

DECLARATIONS: Mapping[DescriptorType, type] = {
    DescriptorType.TENSOR: Tensor,
    DescriptorType.CONVOLUTION: Convolution,
    DescriptorType.OPERATION_CONVOLUTION_FORWARD: ConvolutionForward,
    DescriptorType.MATMUL: Matmul,
    DescriptorType.OPERATION_MATMUL: MatmulOperation,
    DescriptorType.POINTWISE: Pointwise,
    DescriptorType.OPERATION_POINTWISE: PointwiseOperation,
    DescriptorType.REDUCTION: Reduction,
    DescriptorType.OPERATION_REDUCTION: ReductionOperation,
    DescriptorType.OPERATIONGRAPH: GraphDescription,
    DescriptorType.DEVICEPROP: DeviceProperties,
    DescriptorType.ENGINE: EngineChoice,
    DescriptorType.ENGINECFG: EngineConfig,
    DescriptorType.ENGINEHEUR: EngineHeuristics,
    DescriptorType.KNOB_CHOICE: KnobChoice,
    DescriptorType.KNOB_INFO: KnobInfo,
    DescriptorType.LAYOUT_INFO: LayoutInfo,
    DescriptorType.INTERMEDIATE_INFO: IntermediateInfo,
    DescriptorType.EXECUTION_PLAN: ExecutionPlan,
    DescriptorType.VARIANT_PACK: VariantPack,
}


def create(descriptor_type: DescriptorType) -> Descriptor:
    """A new, empty descriptor (cudnnBackendCreateDescriptor); raises NotSupportedError for a type not listed above."""
    declaration = DECLARATIONS.get(descriptor_type)
    if declaration is None:
        raise NotSupportedError.at(
            "create.descriptor_type",
            expected="one of " + ", ".join(known.name for known in DECLARATIONS),
            got=getattr(descriptor_type, "name", descriptor_type),
        )
    return Descriptor(declaration)
