"""Divisive normalisation: each element over a power of its neighbours' squares in its own channel, and its gradient.

    s[i] = lrn_k + lrn_alpha / lrn_n^spatial * (sum of (x[j] - means[j])^2 over the window of i)
    y[i] = x[i] * s[i]^-lrn_beta
    g[j] = 2 lrn_alpha lrn_beta / lrn_n^spatial * (x[j] - means[j]) * (sum of dy[i] x[i] s[i]^(-lrn_beta - 1))
    dx[j] = dy[j] * s[j]^-lrn_beta - g[j]        dmeans[j] = g[j]

A window is lrn_n places along each of the 2 or 3 spatial axes (``local_norm``); the sum in g is over the places i whose
windows hold j. Without means they are 0. Computed in FLOAT, or in DOUBLE for an x in DOUBLE.
Sources: cudnn_ops.h, cudnnDivisiveNormalizationForward and -Backward, CUDNN_DIVNORM_PRECOMPUTED_MEANS; Jarrett et al.,
"What is the best multi-stage architecture for object recognition?".
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DataType, DescriptorType
from lowdnn.ops.base import Values, inputs_of, outputs_of
from lowdnn.ops.local_norm import check, window, window_sums
from lowdnn.ops.norm import compute_type_of
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import tensor_input, tensor_output
from lowdnn.status import BadParamError


@dataclass(frozen=True)
class DivisiveNormalizationForward:
    """See the module's docstring; tensors (N, C, spatial...) of rank 4 or 5."""

    descriptor_type: ClassVar[DescriptorType | None] = None
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.ROWS

    x: Tensor = tensor_input()
    y: Tensor = tensor_output()
    means: Tensor | None = tensor_input(default=None)
    lrn_n: int = 5
    lrn_alpha: float = 1e-4
    lrn_beta: float = 0.75
    lrn_k: float = 2.0

    def __post_init__(self) -> None:
        check("divisive_normalization", self, inputs_of(self) | outputs_of(self))

    @property
    def compute_type(self) -> DataType:
        return compute_type_of(self.x)

    @property
    def flops(self) -> int:
        return (self.lrn_n * (self.x.rank - 2) + 6) * self.x.element_count

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        with np.errstate(all="ignore"):
            return {"y": inputs["x"] * _scales(self, inputs) ** -self.lrn_beta}


@dataclass(frozen=True)
class DivisiveNormalizationBackward:
    """See the module's docstring; tensors (N, C, spatial...) of rank 4 or 5; dmeans only where there are means."""

    descriptor_type: ClassVar[DescriptorType | None] = None
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.ROWS

    x: Tensor = tensor_input()
    dy: Tensor = tensor_input()
    dx: Tensor = tensor_output()
    means: Tensor | None = tensor_input(default=None)
    dmeans: Tensor | None = tensor_output(default=None)
    lrn_n: int = 5
    lrn_alpha: float = 1e-4
    lrn_beta: float = 0.75
    lrn_k: float = 2.0

    def __post_init__(self) -> None:
        where = "divisive_normalization_backward"
        check(where, self, inputs_of(self) | outputs_of(self))
        if self.dmeans is not None and self.means is None:
            raise BadParamError.at(f"{where}.dmeans", expected="none without means", got=self.dmeans.label)

    @property
    def compute_type(self) -> DataType:
        return compute_type_of(self.x)

    @property
    def flops(self) -> int:
        return (2 * self.lrn_n * (self.x.rank - 2) + 12) * self.x.element_count

    def without(self, ports: Collection[str]) -> DivisiveNormalizationBackward:
        """The operation without the gradient of the means, if that is among ``ports``."""
        return replace(self, dmeans=None) if "dmeans" in ports else self

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        x, dy, beta = inputs["x"], inputs["dy"], self.lrn_beta
        before, after = window(self.lrn_n)
        with np.errstate(all="ignore"):
            scales = _scales(self, inputs)
            sums = _spatial_sums(dy * x * scales ** (-beta - 1), after, before)
            slope = 2 * beta * self.lrn_alpha / self.lrn_n ** (x.ndim - 2)
            shares = slope * (x - inputs.get("means", np.float64(0))) * sums
            results = {"dx": dy * scales**-beta - shares, "dmeans": shares}
        return {port: results[port] for port in outputs_of(self)}


Divisive = DivisiveNormalizationForward | DivisiveNormalizationBackward


def _scales(operation: Divisive, inputs: Values) -> NDArray[Any]:
    """s of the module's docstring."""
    centred = np.asarray(inputs["x"] - inputs.get("means", np.float64(0)))
    sums = _spatial_sums(np.square(centred), *window(operation.lrn_n))
    return operation.lrn_k + operation.lrn_alpha / float(operation.lrn_n) ** (centred.ndim - 2) * sums


def _spatial_sums(values: NDArray[Any], before: int, after: int) -> NDArray[Any]:
    for axis in range(2, values.ndim):
        values = window_sums(values, axis, before, after)
    return values
