"""Back-to-back gated causal convolutions along sequences: y_gated, and y, which the gradient reads.

See ``b2b_causal_conv1d``. cuDNN has no descriptor of this operation.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DataType, DescriptorType
from lowdnn.ops.b2b_causal_conv1d import B2BCausalConv1d
from lowdnn.ops.base import Values
from lowdnn.ops.causal_conv1d import sums_of
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import tensor_input, tensor_output


@dataclass(frozen=True)
class B2BCausalConv1dForward:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType | None] = None
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.CONTRACTION

    x: Tensor = tensor_input()
    weights_proj: Tensor = tensor_input()
    weights_mixer: Tensor = tensor_input()
    skip_bias: Tensor = tensor_input()
    y_gated: Tensor = tensor_output()
    y: Tensor | None = tensor_output(default=None)

    def __post_init__(self) -> None:
        self.operands.check("b2b_causal_conv1d_forward", {"y_gated": self.y_gated, "y": self.y})

    @cached_property
    def operands(self) -> B2BCausalConv1d:
        return B2BCausalConv1d(self.x, self.weights_proj, self.weights_mixer, self.skip_bias)

    @property
    def compute_type(self) -> DataType:
        return self.operands.compute_type

    @property
    def flops(self) -> int:
        return self.operands.flops

    def without(self, ports: Collection[str]) -> B2BCausalConv1dForward:
        """The operation without y, where no operation reads it."""
        return replace(self, y=None) if "y" in ports else self

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        with np.errstate(all="ignore"):
            found = self.operands.projected(inputs)
            skipped = inputs["skip_bias"][:, None] * self.operands.gates(found.g)
            y = sums_of(inputs["weights_mixer"], found.g) + skipped
            results = {"y_gated": y * found.rows[0]}
        return results if self.y is None else results | {"y": y}
