"""The enum of causal convolutions, with cuDNN's names and values; it has the name of its C type.

Source: cudnn_subquadratic_ops.h of cuDNN 9.28.
"""

from __future__ import annotations

from lowdnn.enums import CudnnEnum


class CausalConv1dActivation(CudnnEnum, c_prefix="CUDNN_CAUSAL_CONV1D_ACTIVATION_"):
    IDENTITY = 0
    SILU = 1
