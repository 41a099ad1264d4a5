"""``conv_prologue_wgmma``: convolutions on sm_90a with one operand that is a pointwise function of a tensor in memory.

y = conv(f(x), w), y = conv(x, f(w)) and dx = dgrad(f(dy), w), for scales, biases and activations (batch norm applied to
the input) and for operands of one byte in convolutions of fp16 or bf16 (dequantised filters). The operand passes
through registers (``include/tile/register_operand.cuh``), or is converted in shared memory if several taps read one
window of pixels (``converted_pixels.cuh``), instead of through memory in a launch of its own. Padding is zero after the
function. Other operands of the function are constant over the pixels of an image, or over the taps of a filter.
Geometry, epilogues and their reductions are as in ``conv_fprop_wgmma`` and ``conv_dgrad_wgmma``.
Kernels: ``conv_im2col_wgmma.cu``, ``gemm/split_k_reduce.cu``, those of ``gemm/packing.py``.
"""

from __future__ import annotations

from lowdnn.engines.base import Anchors, Refusal
from lowdnn.engines.conv.wgmma.im2col_product import Im2colProduct
from lowdnn.engines.conv.wgmma.im2col_wgmma import Im2colWgmma
from lowdnn.engines.gemm.converted_operand import ConvertedOperand, pixel_operand
from lowdnn.engines.gemm.instructions import WgmmaType
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.prologue_pattern import Prologued, match_prologued_with_reductions
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.status import Status


class ConvPrologueWgmma(Im2colWgmma):
    """See the module's docstring."""

    name = "conv_prologue_wgmma"
    index = 15
    anchors: Anchors = (ConvolutionForward, ConvolutionBackwardData)
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.TENSOR_CORE,)

    def product(self, graph: OperationGraph) -> Im2colProduct | Refusal:
        """The product of pixels of x by filters, or of pixels of dy by channels."""
        if any(isinstance(op, ConvolutionBackwardData) for op in graph.operations):
            return self._gradient(graph)
        matched = match_prologued_with_reductions(graph, ConvolutionForward)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        found = self._converted(matched)
        if isinstance(found, Refusal):
            return found
        instruction, converted = found
        return Im2colProduct.forward(matched.matched, instruction, converted, converts_image=matched.port == "x")

    def _gradient(self, graph: OperationGraph) -> Im2colProduct | Refusal:
        matched = match_prologued_with_reductions(graph, ConvolutionBackwardData)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        if matched.port != "dy":
            # The filter's k is not contiguous, and only contiguous k can pass through registers.
            return Refusal(self.name, f"{matched.matched.anchor.label}: expected operations before dy alone, got w")
        found = self._converted(matched)
        return found if isinstance(found, Refusal) else Im2colProduct.gradient(matched.matched, *found)

    def _converted(
        self, matched: Prologued[ConvolutionForward] | Prologued[ConvolutionBackwardData]
    ) -> tuple[WgmmaType, ConvertedOperand] | Refusal:
        operation = matched.matched.anchor
        image = operation.x if isinstance(operation, ConvolutionForward) else operation.dy
        instruction = self.instruction(operation.label, image, operation.w, operation.convolution)
        if isinstance(instruction, Refusal):
            return instruction
        if instruction.element_bytes != 2:
            got = image.data_type.name
            reason = f"{operation.label}: expected operands of BFLOAT16 or HALF after the prologue, got {got}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_DATA_TYPE)
        divided = 0 if matched.port == "w" else 1
        converted = pixel_operand(matched.prologue, f"{operation.label}.{matched.port}", operation.groups, divided)
        if isinstance(converted, str):
            return Refusal(self.name, converted, Status.NOT_SUPPORTED_LAYOUT)
        return instruction, converted
