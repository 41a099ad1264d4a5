"""Resampling forward and backward: the positions of an image that each output reads, and their weights.

Along each spatial axis output o has a window of ``window`` positions that starts at o * stride - pre_padding; all of
these may be fractions, and position i covers [i, i + 1). With s the window's middle, less one half:

    MAXPOOL, AVGPOOL_*   the positions that the window touches
    BILINEAR             floor(s) and floor(s) + 1, with weights 1 - f and f for s = floor(s) + f; the window is 2
    NEAREST              floor(s + 1/2), the position in which the window's middle lies

and y has 1 + floor((x + pre_padding + post_padding - window) / stride) outputs. Windows whose size is their stride,
x / y, are those of adaptive pooling (``Resample.to_size``).

Positions outside the image are padding. ZERO_PAD: they hold 0. NEG_INF_PAD: they hold minus infinity, and lose to any
position inside. EDGE_VAL_PAD, and interpolation with every padding mode: the nearest position inside stands for them.
AVGPOOL_INCLUDE_PADDING divides by the positions of the window, AVGPOOL_EXCLUDE_PADDING by those inside the image, and
reads no others (an average of none is 0).

The index of a maximum is its place in the window, row-major over the largest window's extents, padding counted. The
first of equal ones wins. NaN wins over every number with PROPAGATE_NAN, and counts as minus infinity without.
Source: cudnn_graph.h, CUDNN_BACKEND_RESAMPLE_DESCRIPTOR.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm, prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import (
    AttributeName,
    AttributeType,
    DataType,
    DescriptorType,
    NanPropagation,
    PaddingMode,
    ResampleMode,
)
from lowdnn.ops.base import Values
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute
from lowdnn.status import (
    BadParamError,
    NotSupportedError,
    ShapeMismatchError,
    UnsupportedDataTypeError,
    UnsupportedPaddingError,
)

_MAX_SPATIAL = 3
_POOLING = (ResampleMode.MAXPOOL, ResampleMode.AVGPOOL_INCLUDE_PADDING, ResampleMode.AVGPOOL_EXCLUDE_PADDING)
_INDEX_TYPES = {DataType.INT8: 2**7, DataType.UINT8: 2**8, DataType.INT32: 2**31, DataType.INT64: 2**63}

Rational = int | Fraction


@dataclass(frozen=True)
class Resample:
    """Mode, geometry and arithmetic; tuples have one entry for each spatial dimension (1 to 3)."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.RESAMPLE

    spatial_dims: int = attribute(AttributeName.RESAMPLE_SPATIAL_DIMS, AttributeType.INT64)
    window_dims: tuple[int | Fraction, ...] = attribute(
        AttributeName.RESAMPLE_WINDOW_DIMS, AttributeType.INT64, AttributeType.FRACTION, max_count=_MAX_SPATIAL
    )
    strides: tuple[int | Fraction, ...] = attribute(
        AttributeName.RESAMPLE_STRIDES, AttributeType.INT64, AttributeType.FRACTION, max_count=_MAX_SPATIAL
    )
    pre_paddings: tuple[int | Fraction, ...] = attribute(
        AttributeName.RESAMPLE_PRE_PADDINGS, AttributeType.INT64, AttributeType.FRACTION, max_count=_MAX_SPATIAL
    )
    post_paddings: tuple[int | Fraction, ...] = attribute(
        AttributeName.RESAMPLE_POST_PADDINGS, AttributeType.INT64, AttributeType.FRACTION, max_count=_MAX_SPATIAL
    )
    mode: ResampleMode = attribute(
        AttributeName.RESAMPLE_MODE, AttributeType.RESAMPLE_MODE, default=ResampleMode.NEAREST
    )
    compute_type: DataType = attribute(
        AttributeName.RESAMPLE_COMP_TYPE, AttributeType.DATA_TYPE, default=DataType.FLOAT
    )
    nan_propagation: NanPropagation = attribute(
        AttributeName.RESAMPLE_NAN_PROPAGATION,
        AttributeType.NAN_PROPOGATION,
        default=NanPropagation.NOT_PROPAGATE_NAN,
    )
    padding_mode: PaddingMode = attribute(
        AttributeName.RESAMPLE_PADDING_MODE, AttributeType.PADDING_MODE, default=PaddingMode.ZERO_PAD
    )

    @staticmethod
    def to_size(
        mode: ResampleMode,
        x_extents: Sequence[int],
        y_extents: Sequence[int],
        compute_type: DataType = DataType.FLOAT,
        nan_propagation: NanPropagation = NanPropagation.NOT_PROPAGATE_NAN,
    ) -> Resample:
        """The resampling from one size to another.

        Strides are x / y and windows lie around the outputs' middles: adaptive pooling, interpolation between the
        middles of pixels. Raises BadParamError for extents under 1.
        """
        for name, extents in (("x_extents", x_extents), ("y_extents", y_extents)):
            if len(extents) != len(x_extents) or any(extent < 1 for extent in extents):
                raise BadParamError.at(
                    f"resample.{name}", expected=f"{len(x_extents)} integers >= 1", got=list(extents)
                )
        strides = tuple(whole(Fraction(x, y)) for x, y in zip(x_extents, y_extents, strict=True))
        interpolated = {ResampleMode.BILINEAR: 2, ResampleMode.NEAREST: 1}
        windows = tuple(interpolated.get(mode, stride) for stride in strides)
        paddings = tuple(whole((w - Fraction(s)) / 2) for w, s in zip(windows, strides, strict=True))
        return Resample(len(strides), windows, strides, paddings, paddings, mode, compute_type, nan_propagation)

    def __post_init__(self) -> None:
        if not 1 <= self.spatial_dims <= _MAX_SPATIAL:
            raise BadParamError.at("resample.spatial_dims", expected="1, 2 or 3", got=self.spatial_dims)
        for field in ("window_dims", "strides", "pre_paddings", "post_paddings"):
            values: tuple[Rational, ...] = getattr(self, field)
            if len(values) != self.spatial_dims:
                raise NotSupportedError.at(
                    f"resample.{field}", expected=f"{self.spatial_dims} numbers", got=_texts(values)
                )
            if field in ("window_dims", "strides") and min(values) <= 0:
                raise BadParamError.at(f"resample.{field}", expected="numbers > 0", got=_texts(values))
            if self.is_pooling and min(values) < 0:
                raise BadParamError.at(f"resample.{field}", expected="numbers >= 0 in pooling", got=_texts(values))
        if self.mode is ResampleMode.BILINEAR and any(window != 2 for window in self.window_dims):
            raise NotSupportedError.at("resample.window_dims", expected="2 for BILINEAR", got=_texts(self.window_dims))
        if self.mode is ResampleMode.AVGPOOL_INCLUDE_PADDING and self.padding_mode is PaddingMode.NEG_INF_PAD:
            raise UnsupportedPaddingError.at(
                "resample.padding_mode",
                expected="ZERO_PAD or EDGE_VAL_PAD for AVGPOOL_INCLUDE_PADDING",
                got=self.padding_mode.name,
            )
        self._check_compute_type()

    @property
    def is_pooling(self) -> bool:
        return self.mode in _POOLING

    @property
    def is_clamped(self) -> bool:
        """Whether positions outside the image stand for the nearest ones inside."""
        if self.is_pooling:
            return self.padding_mode is PaddingMode.EDGE_VAL_PAD and not self.excludes_padding
        return True

    @property
    def excludes_padding(self) -> bool:
        """Whether an average is that of the positions inside the image."""
        return self.mode is ResampleMode.AVGPOOL_EXCLUDE_PADDING

    @property
    def is_integer(self) -> bool:
        """True for integer arithmetic."""
        return self.compute_type is DataType.INT32

    def output_dims(self, x_dims: tuple[int, ...], x: str = "resample.x") -> tuple[int, ...]:
        """The dims of y for an image, which messages call ``x``; raises ShapeMismatchError.

        Along an axis without elements and without padding y has none either.
        """
        if len(x_dims) != self.spatial_dims + 2:
            raise ShapeMismatchError.at(
                f"{x}.dims",
                expected=f"rank {self.spatial_dims + 2} for {self.spatial_dims} spatial dimensions",
                got=list(x_dims),
            )
        spatial = []
        for axis, extent in enumerate(x_dims[2:]):
            padded = extent + self.pre_paddings[axis] + self.post_paddings[axis]
            if extent == 0 and (self.pre_paddings[axis], self.post_paddings[axis]) == (0, 0):
                spatial.append(0)
                continue
            if self.window_dims[axis] > padded or extent == 0:
                raise ShapeMismatchError.at(
                    f"{x}.dims[{2 + axis}]",
                    expected="at least one element, or none and no padding, and with its padding a window of "
                    f"{self.window_dims[axis]}",
                    got=extent,
                )
            spatial.append(1 + int((padded - self.window_dims[axis]) // self.strides[axis]))
        return (*x_dims[:2], *spatial)

    def axes(self, x_dims: tuple[int, ...]) -> tuple[AxisTaps, ...]:
        """The taps along each spatial axis of an image of ``x_dims``."""
        outputs = self.output_dims(x_dims)[2:]
        return tuple(self._axis(axis, x_dims[2 + axis], outputs[axis]) for axis in range(self.spatial_dims))

    def _axis(self, axis: int, inputs: int, outputs: int) -> AxisTaps:
        stride, window = Fraction(self.strides[axis]), Fraction(self.window_dims[axis])
        start = -Fraction(self.pre_paddings[axis])
        if self.mode is ResampleMode.BILINEAR:
            start += (window - 1) / 2
        elif self.mode is ResampleMode.NEAREST:
            start += window / 2
        unit = lcm(stride.denominator, start.denominator, window.denominator if self.is_pooling else 1)
        if self.is_pooling:
            reach = int(window * unit) + unit - 1
        else:
            reach = 2 * unit if self.mode is ResampleMode.BILINEAR else unit
        return AxisTaps(inputs, outputs, int(stride * unit), -int(start * unit), reach, unit)

    def _check_compute_type(self) -> None:
        allowed = [DataType.FLOAT, DataType.DOUBLE]
        if self.mode is not ResampleMode.BILINEAR:
            allowed.append(DataType.INT32)
        if self.compute_type not in allowed:
            raise UnsupportedDataTypeError.at(
                "resample.compute_type",
                expected=f"{', '.join(t.name for t in allowed)} for {self.mode.name}",
                got=self.compute_type.name,
            )


class ResampleOperation:
    """The base of both directions; each is a frozen dataclass with fields of its own names."""

    descriptor_type: ClassVar[DescriptorType]
    resample: Resample
    index: Tensor | None

    @property
    def tolerance_class(self) -> ToleranceClass:
        """A maximum is one of the values; all else is a sum."""
        raise NotImplementedError

    @property
    def compute_type(self) -> DataType:
        return self.resample.compute_type

    @property
    def image(self) -> Tensor:
        """x or dx."""
        raise NotImplementedError

    @property
    def response(self) -> Tensor:
        """y or dy."""
        raise NotImplementedError

    @property
    def axes(self) -> tuple[AxisTaps, ...]:
        """The taps along each spatial axis."""
        return self.resample.axes(self.image.dims)

    @property
    def flops(self) -> int:
        """One for each position that an output reads."""
        return self.response.element_count * prod(axis.span for axis in self.axes)

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        raise NotImplementedError


@dataclass(frozen=True)
class AxisTaps:
    """The positions that output o reads along one axis, in integers: first(o) up to, not including, end(o).

        first(o) = floor((o * step - offset) / unit)      end(o) = floor((o * step - offset + reach) / unit)

    inputs, outputs: extents of image and output.
    """

    inputs: int
    outputs: int
    step: int
    offset: int
    reach: int
    unit: int

    @property
    def span(self) -> int:
        """Positions of the largest window."""
        return -(-self.reach // self.unit)

    def positions(self, tap: int) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64]]:
        """The tap of this number of each output: its position, whether the window has it, its weight between pixels."""
        start = np.arange(self.outputs) * self.step - self.offset
        position = start // self.unit + tap
        fraction = (start % self.unit) / self.unit
        return position, position < (start + self.reach) // self.unit, fraction if tap else 1.0 - fraction


@dataclass(frozen=True)
class Taps:
    """One tap of every window, over the outputs' spatial dims.

    number: its place in the largest window.  index: a function that takes the positions, clamped to the image, out of
    it.
    exists: where the window has it.  inside: where it lies in the image.  weights: between pixels.
    """

    number: int
    index: Any
    exists: NDArray[np.bool_]
    inside: NDArray[np.bool_]
    weights: NDArray[np.float64]

    def read(self, x: NDArray[Any]) -> NDArray[Any]:
        """The image at the positions."""
        return np.asarray(x[self.index])

    def add(self, dx: NDArray[Any], terms: NDArray[Any]) -> None:
        """Adds to the image at the positions."""
        np.add.at(dx, self.index, terms)


def taps(axes: Sequence[AxisTaps]) -> Iterator[Taps]:
    """Every tap of the largest window, row-major."""
    for number, tap in enumerate(np.ndindex(*(axis.span for axis in axes))):
        found = [axis.positions(t) for axis, t in zip(axes, tap, strict=True)]
        inside = [(p >= 0) & (p < axis.inputs) for axis, (p, _, _) in zip(axes, found, strict=True)]
        clipped = [np.clip(p, 0, axis.inputs - 1) for axis, (p, _, _) in zip(axes, found, strict=True)]
        yield Taps(
            number,
            (slice(None), slice(None), *np.ix_(*clipped)),
            _outer(np.logical_and, [exists for _, exists, _ in found]),
            _outer(np.logical_and, inside),
            _outer(np.multiply, [weight for _, _, weight in found]),
        )


def maxima(resample: Resample, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """(largest value, its place) in each window of ``x``, which is of the compute type."""
    axes = resample.axes(x.shape)
    lowest = np.iinfo(np.int32).min if resample.is_integer else -np.inf
    dims = resample.output_dims(x.shape)
    best, place = np.full(dims, lowest, x.dtype), np.full(dims, -1)
    if resample.nan_propagation is NanPropagation.NOT_PROPAGATE_NAN:
        x = np.where(np.isnan(x), lowest, x)
    holds_zero = resample.padding_mode is PaddingMode.ZERO_PAD
    for tap in taps(axes):
        counts = tap.exists & (tap.inside | resample.is_clamped | holds_zero)
        value = np.where(tap.inside | resample.is_clamped, tap.read(x), 0)
        wins = counts & ((place < 0) | (value > best) | (np.isnan(value) & ~np.isnan(best)))
        best, place = np.where(wins, value, best), np.where(wins, tap.number, place)
    return best, np.maximum(place, 0)


def places_in_image(resample: Resample, x_dims: tuple[int, ...], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places in the image, row-major, of these places in each window, which are clamped to the image."""
    axes, found = resample.axes(x_dims), np.zeros_like(places)
    for number, (axis, tap) in enumerate(
        zip(axes, np.unravel_index(places, [axis.span for axis in axes]), strict=True)
    ):
        first = (np.arange(axis.outputs) * axis.step - axis.offset) // axis.unit
        first = first.reshape(-1, *(1,) * (len(axes) - 1 - number))
        found = found * axis.inputs + np.clip(first + tap, 0, axis.inputs - 1)
    return found


def divisors(resample: Resample, axes: Sequence[AxisTaps]) -> NDArray[np.float64]:
    """The divisor of each output's sum, over the outputs' spatial dims: 1 for all but averages."""
    if not resample.is_pooling or resample.mode is ResampleMode.MAXPOOL:
        return np.ones([axis.outputs for axis in axes])
    counted = (tap.exists & (tap.inside | (not resample.excludes_padding)) for tap in taps(axes))
    return np.maximum(sum(part.astype(np.float64) for part in counted), 1.0)


def check_index(where: str, index: Tensor, dims: tuple[int, ...], resample: Resample, x_dims: tuple[int, ...]) -> None:
    """Checks an index tensor: MAXPOOL, the output's dims, and a type that holds every place of a window."""
    if resample.mode is not ResampleMode.MAXPOOL:
        raise BadParamError.at(where, expected=f"no index tensor for {resample.mode.name}", got=index.label)
    if index.dims != dims:
        raise ShapeMismatchError.at(f"{where}.dims", expected=list(dims), got=list(index.dims))
    check_index_type(where, index, prod(axis.span for axis in resample.axes(x_dims)), "a window")


def check_index_type(where: str, index: Tensor, places: int, whose: str) -> None:
    """Raises UnsupportedDataTypeError for a type that does not hold every place of a window or an image."""
    if _INDEX_TYPES.get(index.data_type, 0) < places:
        fitting = [t.name for t, limit in _INDEX_TYPES.items() if limit >= places]
        raise UnsupportedDataTypeError.at(
            f"{where}.data_type",
            expected=f"one of {', '.join(fitting)} for {places} places of {whose}",
            got=index.data_type.name,
        )


def check_scaling(where: str, alpha: float, beta: float) -> None:
    """Checks the deprecated factors."""
    for name, value, expected in (("alpha", alpha, 1.0), ("beta", beta, 0.0)):
        if value != expected:
            raise NotSupportedError.at(
                f"{where}.{name}", expected=expected, got=value, hint="scale with a pointwise operation"
            )


def _outer(combine: np.ufunc, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The parts, one for each axis, combined over all axes."""
    result = parts[0]
    for part in parts[1:]:
        result = combine(result[..., None], part)
    return result


def whole(value: Fraction) -> Rational:
    """The one form of a number: an integer where it is whole."""
    return value.numerator if value.denominator == 1 else value


def _texts(values: Sequence[Rational]) -> list[str]:
    return [str(value) for value in values]
