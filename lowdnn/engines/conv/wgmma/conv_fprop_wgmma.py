"""``conv_fprop_wgmma``: convolution forward with im2col TMA and wgmma, for sm_90a.

fp16, bf16 and fp8 (summed in fp32), fp32 by TF32 (inputs rounded to 10 fraction bits, summed in fp32), int8 (summed in
int32). 1 to 3 spatial axes, both modes, groups whose channels fill whole stages, any pointwise epilogue; strides,
paddings and dilations as far as im2col tensor maps reach. If taps read much padding, the pixels that read it are
computed separately, without those taps (``im2col.py``). Channels-last tensors are read in place; others are repacked
into the workspace first.
Kernels: ``conv_im2col_wgmma.cu``, ``gemm/split_k_reduce.cu``, those of ``gemm/packing.py``.
"""

from __future__ import annotations

from typing import ClassVar

from lowdnn.engines.base import Anchors, Refusal
from lowdnn.engines.conv.wgmma.im2col_product import Im2colProduct
from lowdnn.engines.conv.wgmma.im2col_wgmma import Im2colWgmma
from lowdnn.engines.gemm.instructions import TRUE_FP32_TERMS
from lowdnn.engines.gemm.tiles import TRUE_FP32_NOTES
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import match_anchored_with_reductions
from lowdnn.ops.convolution_forward import ConvolutionForward


class ConvFpropWgmma(Im2colWgmma):
    """See the module's docstring."""

    name = "conv_fprop_wgmma"
    index = 8
    anchors: Anchors = (ConvolutionForward,)

    def product(self, graph: OperationGraph) -> Im2colProduct | Refusal:
        """The product of pixels of x by filters."""
        matched = match_anchored_with_reductions(graph, ConvolutionForward)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        operation = matched.anchor
        instruction = self.instruction(operation.label, operation.x, operation.w, operation.convolution)
        if isinstance(instruction, Refusal):
            return instruction
        return Im2colProduct.forward(matched, instruction)


class ConvFpropWgmmaTf32x3(ConvFpropWgmma):
    """``conv_fprop_wgmma_tf32x3``: convolutions forward of FLOAT as accurate as those of fp32, by three TF32 products.

    The filter is split into parts by a launch of its own (``gemm/tf32_split.cu``), pixels in registers
    (``include/tile/tf32x3_operands.cuh``); everything else is as in ``conv_fprop_wgmma``.
    """

    name = "conv_fprop_wgmma_tf32x3"
    index = 67
    terms: ClassVar[int] = TRUE_FP32_TERMS
    numerical_notes = TRUE_FP32_NOTES
