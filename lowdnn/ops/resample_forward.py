"""Resampling forward: pooling and interpolation of the spatial dims (``ops.resample`` says how).

    MAXPOOL     y = the largest value of the window, index = its place in the window, row-major; with index_in_image
                its place in the image of the channel, or of the nearest position inside for windows of padding alone
    AVGPOOL_*   y = sum of the window's values / their count
    BILINEAR    y = sum of value * weight over the 2 positions along each axis
    NEAREST     y = value

x is (N, C, spatial...), y and index (N, C, outputs...). x is converted to the compute type first, and the result
rounded to it. In INT32 averages truncate toward zero.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.codec import LEFT_OUT
from lowdnn.enums import AttributeName, AttributeType, DescriptorType, PaddingMode, ResampleMode
from lowdnn.ops.base import Values
from lowdnn.ops.resample import (
    Resample,
    ResampleOperation,
    check_index,
    check_index_type,
    check_scaling,
    divisors,
    maxima,
    places_in_image,
    taps,
)
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import BadParamError, ShapeMismatchError


@dataclass(frozen=True)
class ResampleForward(ResampleOperation):
    """See the module's docstring. alpha and beta are deprecated: 1 and 0."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_RESAMPLE_FWD

    resample: Resample = attribute(
        AttributeName.OPERATION_RESAMPLE_FWD_DESC,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.RESAMPLE,
    )
    x: Tensor = tensor_input(AttributeName.OPERATION_RESAMPLE_FWD_XDESC)
    y: Tensor = tensor_output(AttributeName.OPERATION_RESAMPLE_FWD_YDESC)
    index: Tensor | None = tensor_output(AttributeName.OPERATION_RESAMPLE_FWD_IDXDESC, default=None)
    alpha: float = attribute(
        AttributeName.OPERATION_RESAMPLE_FWD_ALPHA, AttributeType.DOUBLE, AttributeType.FLOAT, default=1.0
    )
    beta: float = attribute(
        AttributeName.OPERATION_RESAMPLE_FWD_BETA, AttributeType.DOUBLE, AttributeType.FLOAT, default=0.0
    )
    index_in_image: bool = field(default=False, metadata={LEFT_OUT: True})

    def __post_init__(self) -> None:
        expected = self.resample.output_dims(self.x.dims, "resample_forward.x")
        if self.y.dims != expected:
            raise ShapeMismatchError.at("resample_forward.y.dims", expected=list(expected), got=list(self.y.dims))
        if self.index is not None:
            check_index("resample_forward.index", self.index, expected, self.resample, self.x.dims)
        if self.index_in_image:
            self._check_image()
        check_scaling("resample_forward", self.alpha, self.beta)

    @property
    def tolerance_class(self) -> ToleranceClass:
        is_choice = self.resample.mode is ResampleMode.MAXPOOL
        return ToleranceClass.POINTWISE if is_choice else ToleranceClass.REDUCTION

    @property
    def image(self) -> Tensor:
        return self.x

    @property
    def response(self) -> Tensor:
        return self.y

    def without(self, ports: Collection[str]) -> ResampleForward:
        """The operation without the index."""
        return replace(self, index=None) if "index" in ports else self

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        resample = self.resample
        x = dtypes.rounded(inputs["x"], resample.compute_type)
        if resample.mode is ResampleMode.MAXPOOL:
            y, index = maxima(resample, x)
            index = places_in_image(resample, x.shape, index) if self.index_in_image else index
            return {"y": y, "index": index} if self.index is not None else {"y": y}
        with np.errstate(invalid="ignore", over="ignore"):
            return {"y": _sums(resample, x)}

    def _check_image(self) -> None:
        where = "resample_forward"
        if self.resample.padding_mode is not PaddingMode.NEG_INF_PAD:
            got = self.resample.padding_mode.name
            raise BadParamError.at(f"{where}.padding_mode", expected="NEG_INF_PAD for places in the image", got=got)
        if self.index is not None:
            check_index_type(f"{where}.index", self.index, prod(self.x.dims[2:]), "an image")


def _sums(resample: Resample, x: NDArray[Any]) -> NDArray[Any]:
    """The averages or interpolated values, rounded to the compute type."""
    axes = resample.axes(x.shape)
    total = np.zeros(resample.output_dims(x.shape), x.dtype)
    for tap in taps(axes):
        terms = tap.read(x) * tap.weights if resample.mode is ResampleMode.BILINEAR else tap.read(x)
        total += np.where(tap.exists & (tap.inside | resample.is_clamped), terms, 0)
    divisor = divisors(resample, axes)
    if not resample.is_integer:
        return dtypes.rounded(total / divisor, resample.compute_type)
    total = dtypes.wrapped(total, resample.compute_type)
    count = divisor.astype(np.int64)
    return np.asarray((total - np.fmod(total, count)) // count)
