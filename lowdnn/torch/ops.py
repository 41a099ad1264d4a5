"""Operations that PyTorch does not have and lowdnn has: functions on tensors, which are ``torch.ops.lowdnn`` behind.

CUDA tensors run on lowdnn, whether or not anything is taken over; CPU tensors on PyTorch's operations, or on the
emulated device within ``lowdnn.torch.enable("emulated")``. All work under autograd, with second gradients, and under
``torch.compile``.
"""

from __future__ import annotations

from lowdnn.torch.catalog import DEFINITIONS
from lowdnn.torch.library.block_scaling import block_scale_dequantize, block_scale_quantize
from lowdnn.torch.library.cross_entropy import cross_entropy, log_sum_exp
from lowdnn.torch.library.experts import grouped_matmul
from lowdnn.torch.library.registration import define
from lowdnn.torch.library.residual_norms import add_layer_norm, add_rms_norm
from lowdnn.torch.library.rotary import rotary_embedding
from lowdnn.torch.library.score_attention import attention

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "attention",
    "block_scale_dequantize",
    "block_scale_quantize",
    "cross_entropy",
    "grouped_matmul",
    "log_sum_exp",
    "rotary_embedding",
]

define(DEFINITIONS)
