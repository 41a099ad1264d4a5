"""``block_scale``: quantisation and dequantisation with a scale for each block of neighbours along one axis.

Quantisation reads x once and has a kernel of its own (``block_scale_quantize.cu``); dequantisation is a product, which
the pointwise kernel runs over axes split into blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lowdnn.arch.specs import ArchSpec, all_specs
from lowdnn.engines.base import BEHAVIOR_NOTES, Anchors, Choices, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.block_scale import dequantize, quantize
from lowdnn.engines.block_scale.quantize import Quantization
from lowdnn.engines.block_scale.samples import samples
from lowdnn.engines.limits import alone, names_of
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.block_scale_dequantize import BlockScaleDequantize
from lowdnn.ops.block_scale_quantize import BlockScaleQuantize
from lowdnn.plan import KernelRef, Plan
from lowdnn.status import Status

BlockScaled: TypeAlias = BlockScaleQuantize | BlockScaleDequantize


@dataclass(frozen=True)
class _Found:
    """The one operation of a graph."""

    operation: BlockScaled


class BlockScale:
    """See the module's docstring."""

    name = "block_scale"
    index = 25
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)
    behavior_notes = BEHAVIOR_NOTES
    anchors: Anchors = (BlockScaleDequantize, BlockScaleQuantize)
    limits = alone(BlockScaleDequantize, BlockScaleQuantize)

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses everything but one such operation between tensors in device memory."""
        found = self._matched(graph)
        if isinstance(found, Refusal):
            return found
        operation = found.operation
        if isinstance(operation, BlockScaleDequantize):
            reason = dequantize.refuse(operation, arch)
        else:
            reason = Quantization.of(operation).refusal if operation.x.element_count else ""
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """None."""
        return ()

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """One launch, two for the dequantisation of a shorter last block, none where there are no elements."""
        operation = accepted(self._matched(graph)).operation
        chosen = resolve_choices(self.name, (), choices)
        if not operation.x.element_count:
            return plan_of(self, graph, arch, chosen, (), ())
        if isinstance(operation, BlockScaleDequantize):
            return plan_of(self, graph, arch, chosen, *dequantize.launches_of(operation, arch))
        quantization = Quantization.of(operation)
        params = quantization.params()
        kernel = quantize.kernel_of(params, operation, arch)
        return plan_of(self, graph, arch, chosen, (kernel,), (quantization.launch(params),))

    def precompiled(self) -> tuple[KernelRef, ...]:
        """MXFP8 of bf16 along rows and along columns."""
        plans = (self.plan(graph, arch, {}) for graph in samples() for arch in all_specs())
        return tuple(kernel for plan in plans for kernel in plan.kernels)

    def _matched(self, graph: OperationGraph) -> _Found | Refusal:
        operation = graph.operations[0]
        if len(graph.operations) != 1 or not isinstance(operation, BlockScaled):
            names = names_of(graph.operations)
            return Refusal(self.name, f"operations: expected one block-scale operation, got {names}")
        if any(tensor.is_virtual or tensor.is_scalar_value for tensor in graph.tensors.values()):
            return Refusal(self.name, "tensors: expected all of them in device memory, got virtual ones or values")
        return _Found(operation)
