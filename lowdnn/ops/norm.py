"""Norms forward and backward: the axes that are normalised, and the dims that follow.

x is (N, C, spatial...). By mode, the axes over which mean and variance are taken:

    BATCH_NORM       all but C
    INSTANCE_NORM    the spatial ones
    LAYER_NORM, RMS_NORM   axes along which the scale has x's extent; without a scale all but the first
    ADA_LAYER_NORM   as LAYER_NORM, but never the first: each sample has a scale
    GROUP_NORM       the spatial ones and the channels of a group: C is cut into groups of neighbouring channels

Statistics have x's extents along the other axes and 1 along these; those of GROUP_NORM are (N, groups, 1...).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import DataType, NormMode
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError

Dims = tuple[int, ...]

#: Modes whose scale has one element for each channel.
_PER_CHANNEL = (NormMode.BATCH_NORM, NormMode.INSTANCE_NORM, NormMode.GROUP_NORM)


@dataclass(frozen=True)
class NormShape:
    """The dims of one norm.

    groups: the number of groups of GROUP_NORM's channels, otherwise 0.  scale_dims: dims of scale, bias and their
    gradients; None without any.
    axes: the normalised axes of ``split(x_dims)``.
    """

    mode: NormMode
    x_dims: Dims
    scale_dims: Dims | None
    groups: int = 0

    @property
    def axes(self) -> Dims:
        rank = len(self.x_dims)
        match self.mode:
            case NormMode.BATCH_NORM:
                return (0, *range(2, rank))
            case NormMode.INSTANCE_NORM:
                return tuple(range(2, rank))
            case NormMode.GROUP_NORM:
                return tuple(range(2, rank + 1))
        first = 1 if self.mode is NormMode.ADA_LAYER_NORM else 0
        if self.scale_dims is None:
            return tuple(range(1, rank))
        return tuple(axis for axis in range(first, rank) if self.scale_dims[axis] != 1)

    @property
    def stats_dims(self) -> Dims:
        """The dims of mean and inverse variance."""
        if self.mode is NormMode.GROUP_NORM:
            return (self.x_dims[0], self.groups, *(1,) * (len(self.x_dims) - 2))
        return tuple(1 if axis in self.axes else extent for axis, extent in enumerate(self.x_dims))

    @property
    def count(self) -> int:
        """Elements behind one mean."""
        dims = self.split(self.x_dims)
        return prod(dims[axis] for axis in self.axes)

    def split(self, dims: Dims) -> Dims:
        """``dims`` of x, a scale or statistics with GROUP_NORM's channels as two axes: group, channel of the group."""
        if self.mode is not NormMode.GROUP_NORM or len(dims) != len(self.x_dims):
            return dims
        if dims[1] == self.x_dims[1]:
            return (dims[0], self.groups, self.x_dims[1] // self.groups, *dims[2:])
        return (dims[0], dims[1], 1, *dims[2:])

    def split_strides(self, dims: Dims, strides: Dims) -> Dims:
        """The strides of ``split(dims)``."""
        if len(self.split(dims)) == len(dims):
            return strides
        return (strides[0], strides[1] * self.split(dims)[2], strides[1], *strides[2:])

    def check(self, where: str) -> None:
        """Raises ShapeMismatchError and BadParamError for dims that the mode does not take."""
        x_dims, scale_dims = self.x_dims, self.scale_dims
        if len(x_dims) < 2:
            raise ShapeMismatchError.at(f"{where}.x.dims", expected="rank >= 2", got=list(x_dims))
        if self.mode is NormMode.GROUP_NORM and (self.groups < 1 or x_dims[1] % self.groups):
            raise BadParamError.at(
                f"{where}.groups",
                expected=f"a divisor of {x_dims[1]} channels",
                got=self.groups,
                hint="the statistics' second extent says it, or groups itself",
            )
        if scale_dims is None:
            return
        if self.mode in _PER_CHANNEL:
            expected = tuple(extent if axis == 1 else 1 for axis, extent in enumerate(x_dims))
            if scale_dims != expected:
                raise ShapeMismatchError.at(f"{where}.scale.dims", expected=list(expected), got=list(scale_dims))
            return
        if len(scale_dims) != len(x_dims):
            raise ShapeMismatchError.at(
                f"{where}.scale.dims", expected=f"rank {len(x_dims)} as x", got=list(scale_dims)
            )
        for axis, (own, extent) in enumerate(zip(scale_dims, x_dims, strict=True)):
            if own not in (1, extent):
                raise ShapeMismatchError.at(f"{where}.scale.dims[{axis}]", expected=f"1 or {extent} as x", got=own)


def compute_type_of(x: Tensor) -> DataType:
    """The arithmetic of norms and softmax: DOUBLE for x in DOUBLE, otherwise FLOAT."""
    return DataType.DOUBLE if x.data_type is DataType.DOUBLE else DataType.FLOAT


def check_float(where: str, tensors: dict[str, Tensor]) -> None:
    """Raises UnsupportedDataTypeError for a tensor of another kind than the float types."""
    for port, tensor in tensors.items():
        if dtypes.info(tensor.data_type).kind is not dtypes.Kind.FLOAT:
            raise UnsupportedDataTypeError.at(
                f"{where}.{port}.data_type", expected="a float type", got=tensor.data_type.name
            )


def check_dims(where: str, expected: Dims, tensors: dict[str, Tensor | None]) -> None:
    """Raises ShapeMismatchError for a tensor, of those that there are, with other dims."""
    for port, tensor in tensors.items():
        if tensor is not None and tensor.dims != expected:
            raise ShapeMismatchError.at(f"{where}.{port}.dims", expected=list(expected), got=list(tensor.dims))


def check_scalar(where: str, tensor: Tensor) -> None:
    """Raises BadParamError unless the tensor is a by-value one or a constant."""
    if not tensor.is_scalar_value:
        raise BadParamError.at(where, expected="a by-value or constant tensor", got=tensor.label)


def unbiased_factor(count: float) -> float:
    """The unbiased variance of ``count`` elements over the ordinary one: count / (count - 1).

    1 for a single element, of which no unbiased variance exists.
    """
    return count / max(count - 1, 1)


def average(values: NDArray[Any], axes: Dims) -> NDArray[Any]:
    """The mean over ``axes``, which stay with extent 1; NaN over nothing."""
    count = prod(values.shape[axis] for axis in axes)
    total: NDArray[Any] = values.sum(axes, keepdims=True)
    averaged: NDArray[Any] = total / count
    return averaged
