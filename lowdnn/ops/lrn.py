"""Cross-channel local response normalisation: each element over a power of the squares around it, and its gradient.

    s[c] = lrn_k + lrn_alpha / lrn_n * (sum of x[i]^2 over the window of c)
    y[c] = x[c] * s[c]^-lrn_beta
    dx[c] = dy[c] * s[c]^-lrn_beta - 2 lrn_alpha lrn_beta / lrn_n * x[c] * (sum of dy[i] x[i] s[i]^(-lrn_beta - 1))

The window of channel c is the lrn_n channels around it (``local_norm``); the last sum is over the channels i whose
windows hold c. Computed in FLOAT, or in DOUBLE for an x in DOUBLE.
Sources: cudnn_ops.h, cudnnSetLRNDescriptor, cudnnLRNCrossChannelForward and -Backward; Krizhevsky et al., "ImageNet
classification with deep convolutional neural networks".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.local_norm import check, window, window_sums
from lowdnn.ops.norm import compute_type_of
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import tensor_input, tensor_output


@dataclass(frozen=True)
class LrnForward:
    """See the module's docstring; tensors (N, C, spatial...) of rank 4 or 5."""

    descriptor_type: ClassVar[DescriptorType | None] = None
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.ROWS

    x: Tensor = tensor_input()
    y: Tensor = tensor_output()
    lrn_n: int = 5
    lrn_alpha: float = 1e-4
    lrn_beta: float = 0.75
    lrn_k: float = 2.0

    def __post_init__(self) -> None:
        check("lrn", self, {"x": self.x, "y": self.y})

    @property
    def compute_type(self) -> DataType:
        return compute_type_of(self.x)

    @property
    def flops(self) -> int:
        return (2 * self.lrn_n + 4) * self.x.element_count

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        with np.errstate(all="ignore"):
            return {"y": inputs["x"] * _scales(self, inputs["x"]) ** -self.lrn_beta}


@dataclass(frozen=True)
class LrnBackward:
    """See the module's docstring; tensors (N, C, spatial...) of rank 4 or 5."""

    descriptor_type: ClassVar[DescriptorType | None] = None
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.ROWS

    x: Tensor = tensor_input()
    dy: Tensor = tensor_input()
    dx: Tensor = tensor_output()
    lrn_n: int = 5
    lrn_alpha: float = 1e-4
    lrn_beta: float = 0.75
    lrn_k: float = 2.0

    def __post_init__(self) -> None:
        check("lrn_backward", self, {"x": self.x, "dy": self.dy, "dx": self.dx})

    @property
    def compute_type(self) -> DataType:
        return compute_type_of(self.x)

    @property
    def flops(self) -> int:
        return (3 * self.lrn_n + 10) * self.x.element_count

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        x, dy, beta = inputs["x"], inputs["dy"], self.lrn_beta
        before, after = window(self.lrn_n)
        with np.errstate(all="ignore"):
            scales = _scales(self, x)
            sums = window_sums(dy * x * scales ** (-beta - 1), 1, after, before)
            return {"dx": dy * scales**-beta - 2 * self.lrn_alpha * beta / self.lrn_n * x * sums}


Lrn = LrnForward | LrnBackward


def _scales(operation: Lrn, x: NDArray[Any]) -> NDArray[Any]:
    """s of the module's docstring."""
    squares = window_sums(np.square(x, dtype=np.float64), 1, *window(operation.lrn_n))
    return operation.lrn_k + operation.lrn_alpha / operation.lrn_n * squares
