"""The classic descriptors: tensors, filters, convolutions, activations, pooling, binary operations, reductions.

Each is an immutable value; a C pointer leads to the value that was set last. Without arguments it is a descriptor that
was created and not set yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Final

from lowdnn import dtypes
from lowdnn.capi.classic_enums import FoldingDirection, IndicesType, OpTensorOp, PoolingMode, ReduceTensorIndices
from lowdnn.enums import (
    DIM_MAX,
    ActivationMode,
    ConvolutionMode,
    DataType,
    MathType,
    NanPropagation,
    ReduceTensorOp,
    ReorderType,
    TensorFormat,
)
from lowdnn.ops.local_norm import MAX_N, MIN_BETA, MIN_K
from lowdnn.status import BadParamError, NotSupportedError

_MIN_DIMS: Final = 3
_MAX_INT: Final = 2**31 - 1
#: Most elements of a tensor: a 64-bit integer can count their bytes in the widest type.
_MAX_ELEMENTS: Final = 2**63 // 16
#: Types of vectors of channels: the numbers' type, and how many there are in one.
_VECTORS: Final = {
    DataType.INT8x4: (DataType.INT8, 4),
    DataType.UINT8x4: (DataType.UINT8, 4),
    DataType.INT8x32: (DataType.INT8, 32),
}


@dataclass(frozen=True)
class TensorDescriptor:
    """strides: in elements, one for each extent of ``dims``; those of a type of vectors are in vectors of channels."""

    data_type: DataType = DataType.FLOAT
    dims: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    @classmethod
    def of(cls, where: str, data_type: DataType, dims: Sequence[int], strides: Sequence[int]) -> TensorDescriptor:
        """Raises BadParamError for extents below 1 or strides below 0, NotSupportedError for other ranks."""
        _check_rank(where, len(dims))
        _check_each(f"{where}.dims", dims, 1)
        _check_each(f"{where}.strides", strides, 0)
        check_vectors(where, data_type, dims)
        _check_span(where, 1 + sum((extent - 1) * stride for extent, stride in zip(dims, strides, strict=True)))
        _check_span(where, prod(dims))
        return cls(data_type, tuple(dims), tuple(strides))

    @property
    def is_set(self) -> bool:
        return bool(self.dims)

    @property
    def size_bytes(self) -> int:
        """Bytes from the first element to the end of the last one."""
        found = self.scalars
        last = sum((extent - 1) * stride for extent, stride in zip(found.dims, found.strides, strict=True))
        return (last + 1) * dtypes.info(found.data_type).size_bytes

    @property
    def scalars(self) -> TensorDescriptor:
        """The descriptor itself, or for vectors of v channels that of the numbers, with dims N, C / v, v, spatial."""
        return _scalars(self)


@dataclass(frozen=True)
class FilterDescriptor:
    """dims: K, C / groups, taps..., whatever the format; NHWC has the channels of a tap behind each other."""

    data_type: DataType = DataType.FLOAT
    format: TensorFormat = TensorFormat.NCHW
    dims: tuple[int, ...] = ()

    @classmethod
    def of(cls, where: str, data_type: DataType, layout: TensorFormat, dims: Sequence[int]) -> FilterDescriptor:
        """Raises as ``TensorDescriptor.of``, and BadParamError for vectors in another format than NCHW_VECT_C."""
        _check_rank(where, len(dims))
        _check_each(f"{where}.dims", dims, 1)
        _check_span(where, prod(dims))
        check_vectors(where, data_type, dims, layout)
        return cls(data_type, layout, tuple(dims))

    @property
    def is_set(self) -> bool:
        return bool(self.dims)

    @property
    def strides(self) -> tuple[int, ...]:
        return packed_strides(self.format, self.dims, self.data_type)

    @property
    def size_bytes(self) -> int:
        return prod(self.dims) * dtypes.info(self.scalars.data_type).size_bytes

    @property
    def scalars(self) -> TensorDescriptor:
        """The tensor of scalars, as ``TensorDescriptor`` has it."""
        return _scalars(self)


@dataclass(frozen=True)
class ConvolutionDescriptor:
    """Paddings, strides and dilations for each spatial dimension; paddings count on both sides."""

    paddings: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    mode: ConvolutionMode = ConvolutionMode.CONVOLUTION
    compute_type: DataType = DataType.FLOAT
    math_type: MathType = MathType.DEFAULT_MATH
    group_count: int = 1
    reorder_type: ReorderType = ReorderType.DEFAULT_REORDER

    @property
    def is_set(self) -> bool:
        return bool(self.paddings)

    def check(self, where: str) -> None:
        """Raises BadParamError for paddings below 0, strides and dilations below 1; NotSupportedError for a rank."""
        if not 1 <= len(self.paddings) <= DIM_MAX - 2:
            expected = f"1 to {DIM_MAX - 2} spatial dimensions"
            raise NotSupportedError.at(f"{where}.arrayLength", expected=expected, got=len(self.paddings))
        _check_each(f"{where}.padA", self.paddings, 0)
        _check_each(f"{where}.filterStrideA", self.strides, 1)
        _check_each(f"{where}.dilationA", self.dilations, 1)

    def output_dims(self, where: str, image: TensorDescriptor, filters: FilterDescriptor) -> tuple[int, ...]:
        """N, K, 1 + (image + 2 * padding - (1 + (taps - 1) * dilation)) // stride.

        Raises BadParamError where ranks or channels do not fit together, or the filter is larger than the image.
        """
        if not len(image.dims) == len(filters.dims) == len(self.paddings) + 2:
            got = f"{len(image.dims)}, {len(filters.dims)} and {len(self.paddings)}"
            rule = "tensor and filter of one rank, two more than the convolution's"
            raise BadParamError.at(f"{where}.nbDims", expected=rule, got=got)
        if image.dims[1] != filters.dims[1] * self.group_count:
            expected = f"{filters.dims[1]} * {self.group_count} groups"
            raise BadParamError.at(f"{where}.inputTensorDesc.dims[1]", expected=expected, got=image.dims[1])
        geometry = zip(image.dims[2:], filters.dims[2:], self.paddings, self.strides, self.dilations, strict=True)
        outputs = tuple(
            1 + (extent + 2 * padding - 1 - (taps - 1) * dilation) // stride
            for extent, taps, padding, stride, dilation in geometry
        )
        if min(outputs) < 1:
            expected = "a filter that fits the padded image"
            raise BadParamError.at(f"{where}.filterDesc.dims", expected=expected, got=list(filters.dims))
        _check_each(f"{where}.output", outputs, 1)
        return (image.dims[0], filters.dims[0], *outputs)


@dataclass(frozen=True)
class ActivationDescriptor:
    """coefficient: the upper bound of CLIPPED_RELU, or alpha of ELU.  swish_beta: beta of SWISH."""

    mode: ActivationMode = ActivationMode.IDENTITY
    nan_propagation: NanPropagation = NanPropagation.NOT_PROPAGATE_NAN
    coefficient: float = 0.0
    swish_beta: float = 1.0
    is_set: bool = False


@dataclass(frozen=True)
class PoolingDescriptor:
    """The extent of the window, the padding on each side and the stride, for each spatial dimension."""

    mode: PoolingMode = PoolingMode.MAX
    nan_propagation: NanPropagation = NanPropagation.NOT_PROPAGATE_NAN
    window: tuple[int, ...] = ()
    paddings: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    @property
    def is_set(self) -> bool:
        return bool(self.window)

    def check(self, where: str) -> None:
        """Raises BadParamError for windows and strides below 1 or paddings below 0; NotSupportedError for a rank."""
        if not 1 <= len(self.window) <= DIM_MAX - 2:
            expected = f"1 to {DIM_MAX - 2} spatial dimensions"
            raise NotSupportedError.at(f"{where}.nbDims", expected=expected, got=len(self.window))
        _check_each(f"{where}.windowDimA", self.window, 1)
        _check_each(f"{where}.paddingA", self.paddings, 0)
        _check_each(f"{where}.strideA", self.strides, 1)

    def output_dims(self, where: str, image: TensorDescriptor) -> tuple[int, ...]:
        """N, C, 1 + (image + 2 * padding - window) // stride; raises BadParamError where ranks or sizes do not fit."""
        if len(image.dims) != len(self.window) + 2:
            expected = f"a tensor of rank {len(self.window) + 2}"
            raise BadParamError.at(f"{where}.inputTensorDesc.dims", expected=expected, got=list(image.dims))
        geometry = zip(image.dims[2:], self.window, self.paddings, self.strides, strict=True)
        outputs = tuple(1 + (extent + 2 * padding - window) // stride for extent, window, padding, stride in geometry)
        if min(outputs) < 1:
            expected = "a window that fits the padded tensor"
            raise BadParamError.at(f"{where}.poolingDesc.window", expected=expected, got=list(self.window))
        _check_each(f"{where}.output", outputs, 1)
        return (*image.dims[:2], *outputs)


@dataclass(frozen=True)
class OpTensorDescriptor:
    operation: OpTensorOp = OpTensorOp.ADD
    compute_type: DataType = DataType.FLOAT
    nan_propagation: NanPropagation = NanPropagation.NOT_PROPAGATE_NAN
    is_set: bool = False


@dataclass(frozen=True)
class ReduceTensorDescriptor:
    operation: ReduceTensorOp = ReduceTensorOp.ADD
    compute_type: DataType = DataType.FLOAT
    nan_propagation: NanPropagation = NanPropagation.NOT_PROPAGATE_NAN
    indices: ReduceTensorIndices = ReduceTensorIndices.NO_INDICES
    indices_type: IndicesType = IndicesType.BITS_32
    is_set: bool = False


@dataclass(frozen=True)
class DropoutDescriptor:
    """dropout: the share of elements that become 0.  states: their address on the device, or 0."""

    dropout: float = 0.0
    states: int = 0
    seed: int = 0
    is_set: bool = False

    @property
    def scale(self) -> float:
        """The factor of the elements that are kept."""
        return 1 / (1 - self.dropout) if self.dropout < 1 else 0.0


@dataclass(frozen=True)
class LrnDescriptor:
    """Parameters of local response normalisation, with the values that a new descriptor has."""

    lrn_n: int = 5
    lrn_alpha: float = 1e-4
    lrn_beta: float = 0.75
    lrn_k: float = 2.0

    @property
    def is_set(self) -> bool:
        return True

    def check(self, where: str) -> None:
        """Raises BadParamError for values out of the documented limits."""
        if not 1 <= self.lrn_n <= MAX_N:
            raise BadParamError.at(f"{where}.lrnN", expected=f"1 to {MAX_N}", got=self.lrn_n)
        if not isfinite(self.lrn_alpha):
            raise BadParamError.at(f"{where}.lrnAlpha", expected="a finite number", got=self.lrn_alpha)
        for name, value, least in (("lrnBeta", self.lrn_beta, MIN_BETA), ("lrnK", self.lrn_k, MIN_K)):
            if not (value >= least and isfinite(value)):
                raise BadParamError.at(f"{where}.{name}", expected=f"a finite number >= {least}", got=value)


@dataclass(frozen=True)
class TensorTransformDescriptor:
    """Padding on both sides of each dimension (below 0: what is cut off), then folding of the spatial ones, or back.

    A fold of f moves each f-th element along a dimension to channels of its own. With folds f and g, element (i, j)
    of channel c becomes element (i // f, j // g) of channel (c * f + i % f) * g + j % g. UNFOLD does the reverse first
    and pads then.
    """

    layout: TensorFormat = TensorFormat.NCHW
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    folds: tuple[int, ...] = ()
    direction: FoldingDirection = FoldingDirection.FOLD

    @property
    def is_set(self) -> bool:
        return bool(self.before)

    @property
    def folds_of_all(self) -> tuple[int, ...]:
        """The folds of all dimensions, the first two included, which have none."""
        return (1, 1, *self.folds)

    def check(self, where: str) -> None:
        """Raises BadParamError for 2 dimensions or less, folds below 1; NotSupportedError for NCHW_VECT_C."""
        if len(self.before) <= 2:
            raise BadParamError.at(f"{where}.nbDims", expected="more than 2", got=len(self.before))
        if self.layout is TensorFormat.NCHW_VECT_C:
            raise NotSupportedError.at(f"{where}.destFormat", expected="NCHW or NHWC", got=self.layout.name)
        _check_each(f"{where}.foldA", self.folds, 1)

    def output_dims(self, where: str, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Raises BadParamError where ranks differ, a fold does not divide an extent, or nothing is left of one."""
        if len(dims) != len(self.before):
            raise BadParamError.at(
                f"{where}.dims", expected=f"rank {len(self.before)} as the transform", got=list(dims)
            )
        factor = prod(self.folds)
        if self.direction is FoldingDirection.FOLD:
            padded = self._padded(dims)
            self._check_divides(where, padded, self.folds_of_all)
            n, c, *spatial = (extent // fold for extent, fold in zip(padded, self.folds_of_all, strict=True))
            return (n, c * factor, *spatial)
        self._check_divides(where, dims, (1, factor, *(1,) * len(self.folds)))
        n, c, *spatial = (extent * fold for extent, fold in zip(dims, self.folds_of_all, strict=True))
        return self._padded((n, c // factor, *spatial))

    def _padded(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(map(sum, zip(dims, self.before, self.after, strict=True)))

    def _check_divides(self, where: str, dims: tuple[int, ...], divisors: tuple[int, ...]) -> None:
        _check_each(f"{where}.dims, padded", dims, 1)
        for axis, (extent, divisor) in enumerate(zip(dims, divisors, strict=True)):
            if extent % divisor:
                raise BadParamError.at(f"{where}.dims[{axis}]", expected=f"a multiple of {divisor}", got=extent)


def packed_strides(layout: TensorFormat, dims: Sequence[int], data_type: DataType = DataType.FLOAT) -> tuple[int, ...]:
    """Strides without gaps: the last dimension inside, or for NHWC the second one; for vectors, in vectors."""
    order = [*range(len(dims))]
    if layout is TensorFormat.NHWC and len(order) > 1:
        order.append(order.pop(1))
    _, vector = _VECTORS.get(data_type, (data_type, 1))
    strides, step = [0] * len(dims), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= dims[axis] // vector if axis == 1 else dims[axis]
    return tuple(strides)


def check_vectors(where: str, data_type: DataType, dims: Sequence[int], layout: TensorFormat | None = None) -> None:
    """Checks types of vectors: whole ones along the channels, 2 or 3 spatial dimensions, and NCHW_VECT_C for no other.

    Raises BadParamError, NotSupportedError.
    """
    is_vector = data_type in _VECTORS
    if layout is not None and is_vector != (layout is TensorFormat.NCHW_VECT_C):
        expected = "NCHW_VECT_C" if is_vector else "NCHW or NHWC"
        raise BadParamError.at(f"{where}.format", expected=f"{expected} for {data_type.name}", got=layout.name)
    if is_vector:
        _, vector = _VECTORS[data_type]
        if len(dims) not in (4, 5):
            raise NotSupportedError.at(f"{where}.nbDims", expected=f"4 or 5 for {data_type.name}", got=len(dims))
        if dims[1] % vector:
            raise BadParamError.at(f"{where}.dims[1]", expected=f"a multiple of {vector}", got=dims[1])


def _scalars(of: TensorDescriptor | FilterDescriptor) -> TensorDescriptor:
    if of.data_type not in _VECTORS:
        return of if isinstance(of, TensorDescriptor) else TensorDescriptor(of.data_type, of.dims, of.strides)
    data_type, vector = _VECTORS[of.data_type]
    (n, c, *spatial), (n_stride, c_stride, *strides) = of.dims, (vector * stride for stride in of.strides)
    return TensorDescriptor(data_type, (n, c // vector, vector, *spatial), (n_stride, c_stride, 1, *strides))


def _check_rank(where: str, rank: int) -> None:
    if not _MIN_DIMS <= rank <= DIM_MAX:
        raise NotSupportedError.at(f"{where}.nbDims", expected=f"{_MIN_DIMS} to {DIM_MAX}", got=rank)


def _check_span(where: str, elements: int) -> None:
    if elements > _MAX_ELEMENTS:
        raise NotSupportedError.at(f"{where}.dims", expected=f"at most {_MAX_ELEMENTS} elements", got=elements)


def _check_each(where: str, values: Sequence[int], least: int) -> None:
    if any(not least <= value <= _MAX_INT for value in values):
        raise BadParamError.at(where, expected=f"integers of {least} or more", got=list(values))
