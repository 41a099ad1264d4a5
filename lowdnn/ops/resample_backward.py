"""Resampling backward: dx, where each position collects the outputs that read it.

    MAXPOOL     dx[i] = sum of dy[o] over the outputs whose maximum lies at i
    AVGPOOL_*   dx[i] = sum of dy[o] / count[o] over the windows that hold i, as often as they do
    BILINEAR    dx[i] = sum of dy[o] * weight(o, i)
    NEAREST     dx[i] = sum of dy[o] over the outputs that read i

dy is (N, C, outputs...), dx (N, C, spatial...); several extents of dx give the same dy, so that dx's dims cannot be
inferred. MAXPOOL finds its maxima by ``index``, what the forward pass gave, or from ``x`` where there is none; what
falls on padding is lost. An index that is no place of the window names none. ``y`` is not needed. Float types only. An
infinite gradient may give NaN where interpolation weighs it with 0.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import AttributeName, AttributeType, DescriptorType, ResampleMode
from lowdnn.ops.base import Values
from lowdnn.ops.compute import check_float_operands
from lowdnn.ops.resample import Resample, ResampleOperation, check_index, check_scaling, divisors, maxima, taps
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError


@dataclass(frozen=True)
class ResampleBackward(ResampleOperation):
    """See the module's docstring. alpha and beta are deprecated: 1 and 0."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_RESAMPLE_BWD

    resample: Resample = attribute(
        AttributeName.OPERATION_RESAMPLE_BWD_DESC,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.RESAMPLE,
    )
    dy: Tensor = tensor_input(AttributeName.OPERATION_RESAMPLE_BWD_DYDESC)
    dx: Tensor = tensor_output(AttributeName.OPERATION_RESAMPLE_BWD_DXDESC)
    index: Tensor | None = tensor_input(AttributeName.OPERATION_RESAMPLE_BWD_IDXDESC, default=None)
    x: Tensor | None = tensor_input(AttributeName.OPERATION_RESAMPLE_BWD_XDESC, default=None)
    y: Tensor | None = tensor_input(AttributeName.OPERATION_RESAMPLE_BWD_YDESC, default=None)
    alpha: float = attribute(
        AttributeName.OPERATION_RESAMPLE_BWD_ALPHA, AttributeType.DOUBLE, AttributeType.FLOAT, default=1.0
    )
    beta: float = attribute(
        AttributeName.OPERATION_RESAMPLE_BWD_BETA, AttributeType.DOUBLE, AttributeType.FLOAT, default=0.0
    )

    def __post_init__(self) -> None:
        expected = self.resample.output_dims(self.dx.dims, "resample_backward.dx")
        for port, tensor, dims in (("dy", self.dy, expected), ("x", self.x, self.dx.dims), ("y", self.y, expected)):
            if tensor is not None and tensor.dims != dims:
                raise ShapeMismatchError.at(
                    f"resample_backward.{port}.dims", expected=list(dims), got=list(tensor.dims)
                )
        if self.index is not None:
            check_index("resample_backward.index", self.index, expected, self.resample, self.dx.dims)
        elif self.resample.mode is ResampleMode.MAXPOOL and self.x is None:
            raise BadParamError.at(
                "resample_backward.index", expected="the index tensor, or x, for MAXPOOL", got="none"
            )
        check_scaling("resample_backward", self.alpha, self.beta)
        check_float_operands("resample_backward", (self.dy,))
        if self.resample.is_integer:
            raise UnsupportedDataTypeError.at(
                "resample_backward.compute_type", expected="FLOAT or DOUBLE", got=self.resample.compute_type.name
            )

    @property
    def tolerance_class(self) -> ToleranceClass:
        return ToleranceClass.REDUCTION

    @property
    def image(self) -> Tensor:
        return self.dx

    @property
    def response(self) -> Tensor:
        return self.dy

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        resample = self.resample
        dy = dtypes.rounded(inputs["dy"], resample.compute_type)
        dx = np.zeros(self.dx.dims)
        places = self._places(inputs) if resample.mode is ResampleMode.MAXPOOL else None
        with np.errstate(invalid="ignore", over="ignore"):
            divisor = divisors(resample, self.axes)
            common = divisor.max(initial=1.0)
            is_common = bool((divisor == common).all())
            terms = dy if is_common else dy / divisor
            for tap in taps(self.axes):
                reads = tap.exists & (tap.inside | resample.is_clamped)
                if places is not None:
                    reads = reads & (places == tap.number)
                weighted = terms * tap.weights if resample.mode is ResampleMode.BILINEAR else terms
                tap.add(dx, np.where(reads, weighted, 0))
            total = dx / common if is_common else dx
            return {"dx": dtypes.rounded(total, resample.compute_type)}

    def _places(self, inputs: Values) -> NDArray[Any]:
        """The argmaxes: the position of each maximum in its window."""
        if self.index is not None:
            return inputs["index"]
        return maxima(self.resample, dtypes.rounded(inputs["x"], self.resample.compute_type))[1]
