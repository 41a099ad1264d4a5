"""The gradients of causal convolution along sequences from dy, that of its y. See ``causal_conv1d``.

    g = dy * activation'(z)        dx[b, d, l] = sum over j < K of weight[d, j] * g[b, d, l + (K - 1) - j]
    dweight[d, j] = sum over b, l of g[b, d, l] * x[b, d, l - (K - 1) + j]        dbias[d] = sum over b, l of g[b, d, l]

z is computed again from x. Sums end with their sequence; ``dinitial_states`` is what dx would be before its first
element. cuDNN has no descriptor of this operation.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.causal_conv1d import CausalConv1d, gradients_of, sigmoid
from lowdnn.ops.norm import check_dims, check_float
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import tensor_input, tensor_output
from lowdnn.subquadratic_enums import CausalConv1dActivation


@dataclass(frozen=True)
class CausalConv1dBackward:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType | None] = None
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.CONTRACTION

    x: Tensor = tensor_input()
    weight: Tensor = tensor_input()
    dy: Tensor = tensor_input()
    dx: Tensor = tensor_output()
    dweight: Tensor = tensor_output()
    bias: Tensor | None = tensor_input(default=None)
    dbias: Tensor | None = tensor_output(default=None)
    lengths: Tensor | None = tensor_input(default=None)
    offsets: Tensor | None = tensor_input(default=None)
    initial_states: Tensor | None = tensor_input(default=None)
    dinitial_states: Tensor | None = tensor_output(default=None)
    activation: CausalConv1dActivation = CausalConv1dActivation.IDENTITY

    def __post_init__(self) -> None:
        where = "causal_conv1d_backward"
        self.operands.check(where, {"dy": self.dy, "dx": self.dx}, {"dinitial_states": self.dinitial_states})
        check_dims(where, self.weight.dims, {"dweight": self.dweight})
        check_dims(where, self.weight.dims[:1], {"dbias": self.dbias})
        parameters = {"dweight": self.dweight, "dbias": self.dbias}
        check_float(where, {port: tensor for port, tensor in parameters.items() if tensor is not None})

    @cached_property
    def operands(self) -> CausalConv1d:
        return CausalConv1d(
            self.x, self.weight, self.bias, self.lengths, self.offsets, self.initial_states, self.activation
        )

    @property
    def compute_type(self) -> DataType:
        return self.operands.compute_type

    @property
    def flops(self) -> int:
        """The operations of three sums: z, dx and dweight."""
        return 3 * self.operands.flops

    def without(self, ports: Collection[str]) -> CausalConv1dBackward:
        """The operation without the gradients of bias and initial states, where no operation reads them."""
        absent: dict[str, Any] = dict.fromkeys({"dbias", "dinitial_states"} & set(ports))
        return replace(self, **absent) if absent else self

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        operands, taps = self.operands, self.operands.taps
        dx, dweight = np.zeros(self.x.dims), np.zeros(self.weight.dims)
        dbias, dstates = np.zeros(self.weight.dims[:1]), np.zeros(operands.state_dims)
        with np.errstate(all="ignore"):
            for number, batch, elements in operands.sequences(inputs):
                extended = operands.extended(inputs, number, batch, elements)
                g = inputs["dy"][batch, :, elements] * self._slope(operands.sums(inputs, extended))
                gradient, of_weight = gradients_of(g, inputs["weight"], extended)
                dweight += of_weight
                dbias += np.sum(g, axis=1)
                dstates[number], dx[batch, :, elements] = gradient[:, : taps - 1], gradient[:, taps - 1 :]
        results = {"dx": dx, "dweight": dweight}
        optional = {"dbias": (self.dbias, dbias), "dinitial_states": (self.dinitial_states, dstates)}
        return results | {port: value for port, (tensor, value) in optional.items() if tensor is not None}

    def _slope(self, z: NDArray[Any]) -> NDArray[Any]:
        """The activation's derivative at z."""
        if not self.operands.has_silu:
            return np.ones(z.shape)
        s = sigmoid(z)
        slope: NDArray[Any] = s * (1 + z * (1 - s))
        return slope
