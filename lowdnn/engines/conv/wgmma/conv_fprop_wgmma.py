"""``conv_fprop_wgmma``: convolution forward with im2col TMA and wgmma, for sm_90a.

fp16, bf16 and fp8 (summed in fp32), fp32 by TF32 (inputs rounded to 10 fraction bits, summed in fp32), int8 (summed in
int32). 1 to 3 spatial axes, both modes, groups whose channels fill whole stages, any pointwise epilogue; strides,
paddings and dilations as far as im2col tensor maps reach. If taps read much padding, the pixels that read it are
computed separately, without those taps (``im2col.py``). Channels-last tensors are read in place; others are repacked
into the workspace first.
Kernels: ``conv_im2col_wgmma.cu``, ``gemm/split_k_reduce.cu``, those of ``gemm/packing.py``.
"""

from __future__ import annotations

from lowdnn.engines.base import Anchors, Refusal
from lowdnn.engines.conv.wgmma.im2col_product import Im2colProduct
from lowdnn.engines.conv.wgmma.im2col_wgmma import Im2colWgmma
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
