"""``conv_dgrad_wgmma``: convolution backward data with im2col TMA and wgmma, for sm_90a.

fp16, bf16 and fp8 (summed in fp32), fp32 by TF32 (inputs rounded to 10 fraction bits, summed in fp32). 1 to 3 spatial
axes, both modes, groups whose filters fill whole stages, any pointwise epilogue; strides, paddings and dilations as far
as im2col tensor maps reach. With strides, the pixels of dx fall into classes that read the same taps of the filter; one
launch computes them all, and no multiplication is spent on zeros (``im2col.py``), nor on padding if taps read much of
it. Channels-last tensors are read in place; others are repacked into the workspace first, and so are filters of types
that wgmma takes only K-major.
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
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData


class ConvDgradWgmma(Im2colWgmma):
    """See the module's docstring."""

    name = "conv_dgrad_wgmma"
    index = 9
    anchors: Anchors = (ConvolutionBackwardData,)

    def product(self, graph: OperationGraph) -> Im2colProduct | Refusal:
        """The product of pixels of dx by channels."""
        matched = match_anchored_with_reductions(graph, ConvolutionBackwardData)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        operation = matched.anchor
        instruction = self.instruction(operation.label, operation.dy, operation.w, operation.convolution)
        if isinstance(instruction, Refusal):
            return instruction
        return Im2colProduct.gradient(matched, instruction)


class ConvDgradWgmmaTf32x3(ConvDgradWgmma):
    """``conv_dgrad_wgmma_tf32x3``: gradients of the data of FLOAT as accurate as those of fp32, by three TF32 products.

    The filter is split into parts by a launch of its own (``gemm/tf32_split.cu``), pixels in registers
    (``include/tile/tf32x3_operands.cuh``); everything else is as in ``conv_dgrad_wgmma``.
    """

    name = "conv_dgrad_wgmma_tf32x3"
    index = 68
    terms: ClassVar[int] = TRUE_FP32_TERMS
    numerical_notes = TRUE_FP32_NOTES
