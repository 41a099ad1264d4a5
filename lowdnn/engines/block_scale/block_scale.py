"""``block_scale``: quantisation and dequantisation with a scale for each block of neighbours along one axis.

Quantisation reads x once and has a kernel of its own (``block_scale_quantize.cu``); dequantisation is a product, which
the pointwise kernel runs over axes split into blocks.
"""

from __future__ import annotations

from typing import TypeAlias

from lowdnn.arch.specs import ArchSpec, all_specs
from lowdnn.engines.base import Anchors, Choices
from lowdnn.engines.block_scale import dequantize, quantize
from lowdnn.engines.block_scale.quantize import Quantization
from lowdnn.engines.block_scale.samples import samples
from lowdnn.engines.limits import alone
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.single_operation import SingleOperation
from lowdnn.ops.block_scale_dequantize import BlockScaleDequantize
from lowdnn.ops.block_scale_quantize import BlockScaleQuantize
from lowdnn.plan import KernelRef

BlockScaled: TypeAlias = BlockScaleQuantize | BlockScaleDequantize


class BlockScale(SingleOperation[BlockScaled]):
    """See the module's docstring."""

    name = "block_scale"
    index = 25
    anchors: Anchors = (BlockScaleDequantize, BlockScaleQuantize)
    limits = alone(*anchors)
    expects = "one block-scale operation"

    def limit(self, operation: BlockScaled, arch: ArchSpec) -> str:
        """Limits the number of axes, of blocks along an axis, and the extents of a tensor."""
        if isinstance(operation, BlockScaleDequantize):
            return dequantize.refuse(operation, arch)
        return Quantization.of(operation).refusal

    def launches(self, operation: BlockScaled, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch; two if the last block of a dequantisation is shorter."""
        if isinstance(operation, BlockScaleDequantize):
            return dequantize.parts_of(operation, arch)
        quantization = Quantization.of(operation)
        params = quantization.params()
        return PlanParts([(quantize.kernel_of(params, operation, arch), quantization.launch(params))])

    def precompiled(self) -> tuple[KernelRef, ...]:
        """MXFP8 of bf16 along rows and along columns."""
        plans = (self.plan(graph, arch, {}) for graph in samples() for arch in all_specs())
        return tuple(kernel for plan in plans for kernel in plan.kernels)
