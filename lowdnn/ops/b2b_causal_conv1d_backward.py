"""The gradients of back-to-back gated causal convolutions from dy, that of y_gated. See ``b2b_causal_conv1d``.

    h = dy * p_0                            the gradient of y
    dg = skip_bias * h + the gradient of causal_conv1d's x from h and weights_mixer
    dp_0 = dy * y        dp_1 = dg * p_2        dp_2 = dg * p_1
    dx, dweights_proj: the gradients of causal_conv1d from dp; dweights_mixer: that from h and g
    dskip_bias[d] = sum over b, l of h[b, d, l] * g[b, d, l]

p and g are computed again from x; y is what the forward operation stored. cuDNN has no descriptor of this operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DataType, DescriptorType
from lowdnn.ops.b2b_causal_conv1d import ROWS, B2BCausalConv1d
from lowdnn.ops.base import Values
from lowdnn.ops.causal_conv1d import gradients_of
from lowdnn.ops.norm import check_dims, check_float
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import tensor_input, tensor_output


@dataclass(frozen=True)
class B2BCausalConv1dBackward:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType | None] = None
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.CONTRACTION

    x: Tensor = tensor_input()
    weights_proj: Tensor = tensor_input()
    weights_mixer: Tensor = tensor_input()
    skip_bias: Tensor = tensor_input()
    y: Tensor = tensor_input()
    dy: Tensor = tensor_input()
    dx: Tensor = tensor_output()
    dweights_proj: Tensor = tensor_output()
    dweights_mixer: Tensor = tensor_output()
    dskip_bias: Tensor = tensor_output()

    def __post_init__(self) -> None:
        where = "b2b_causal_conv1d_backward"
        self.operands.check(where, {"y": self.y, "dy": self.dy})
        gradients = {
            "dx": (self.x, self.dx),
            "dweights_proj": (self.weights_proj, self.dweights_proj),
            "dweights_mixer": (self.weights_mixer, self.dweights_mixer),
            "dskip_bias": (self.skip_bias, self.dskip_bias),
        }
        for port, (of, gradient) in gradients.items():
            check_dims(where, of.dims, {port: gradient})
            check_float(where, {port: gradient})

    @cached_property
    def operands(self) -> B2BCausalConv1d:
        return B2BCausalConv1d(self.x, self.weights_proj, self.weights_mixer, self.skip_bias)

    @property
    def compute_type(self) -> DataType:
        return self.operands.compute_type

    @property
    def flops(self) -> int:
        """The operations of three sums: those of the forward operation and two for gradients."""
        return 3 * self.operands.flops

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        operands, dp = self.operands, np.zeros(self.x.dims)
        with np.errstate(all="ignore"):
            found = operands.projected(inputs)
            g, h = operands.gates(found.g), inputs["dy"] * found.rows[0]
            dg, dmixer = gradients_of(h, inputs["weights_mixer"], found.g)
            dg = operands.gates(dg) + inputs["skip_bias"][:, None] * h
            for i, row in enumerate((inputs["dy"] * inputs["y"], dg * found.rows[2], dg * found.rows[1])):
                dp[:, i::ROWS] = row
            dx, dprojection = gradients_of(dp, inputs["weights_proj"], found.x)
            return {
                "dx": dx[..., operands.projection_taps - 1 :],
                "dweights_proj": dprojection,
                "dweights_mixer": dmixer,
                "dskip_bias": (h * g).sum(axis=(0, 2)),
            }
