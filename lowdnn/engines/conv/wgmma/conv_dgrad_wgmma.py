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

from lowdnn.engines.base import Anchors, Refusal
from lowdnn.engines.conv.wgmma.im2col_product import Im2colProduct
from lowdnn.engines.conv.wgmma.im2col_wgmma import Im2colWgmma
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
