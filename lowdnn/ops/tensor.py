"""Tensors of an operation graph: what a tensor is, never where its data lies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar

from lowdnn import dtypes
from lowdnn.enums import DIM_MAX, AttributeName, AttributeType, DataType, DescriptorType, TensorReordering
from lowdnn.schema import attribute
from lowdnn.status import BadParamError, NotSupportedError, UnsupportedDataTypeError

#: Rows of a tile of F8_128x4.
TILE_ROWS = 128
#: Columns of a tile of F8_128x4.
TILE_COLUMNS = 4

#: Bytes and elements are computed in Python integers and must fit a signed 64-bit offset.
MAX_SPAN_BYTES = 2**63 - 1


@dataclass(frozen=True)
class Tensor:
    """An n-dimensional array: element ``i`` lies at ``sum(i[d] * strides[d])`` elements from the base.

    dims: extents, 0 allowed (an empty tensor).  strides: in elements, >= 0; 0 repeats one element (inputs only).
    alignment_bytes: a power of two that divides the address, by the caller's promise; at least the element size.
    is_virtual: an edge inside the graph that has no address.
    ragged_offset: where each batch begins, times the multiplier, in place of the first stride (``ragged``).
    is_by_value: a host scalar passed by value at execute.  constant_value: a scalar fixed in the graph itself.
    Source: cudnn_graph.h, CUDNN_BACKEND_TENSOR_DESCRIPTOR.
    """

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.TENSOR

    uid: int = attribute(AttributeName.TENSOR_UNIQUE_ID, AttributeType.INT64)
    data_type: DataType = attribute(AttributeName.TENSOR_DATA_TYPE, AttributeType.DATA_TYPE)
    dims: tuple[int, ...] = attribute(AttributeName.TENSOR_DIMENSIONS, AttributeType.INT64, max_count=DIM_MAX)
    strides: tuple[int, ...] = attribute(AttributeName.TENSOR_STRIDES, AttributeType.INT64, max_count=DIM_MAX)
    alignment_bytes: int = attribute(AttributeName.TENSOR_BYTE_ALIGNMENT, AttributeType.INT64)
    is_virtual: bool = attribute(AttributeName.TENSOR_IS_VIRTUAL, AttributeType.BOOLEAN, default=False)
    is_by_value: bool = attribute(AttributeName.TENSOR_IS_BY_VALUE, AttributeType.BOOLEAN, default=False)
    vector_count: int = attribute(AttributeName.TENSOR_VECTOR_COUNT, AttributeType.INT64, default=1)
    vectorized_dimension: int = attribute(AttributeName.TENSOR_VECTORIZED_DIMENSION, AttributeType.INT64, default=-1)
    reordering: TensorReordering = attribute(
        AttributeName.TENSOR_REORDERING_MODE, AttributeType.TENSOR_REORDERING_MODE, default=TensorReordering.NONE
    )
    ragged_offset: Tensor | None = attribute(
        AttributeName.TENSOR_RAGGED_OFFSET_DESC,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.TENSOR,
        default=None,
    )
    ragged_offset_multiplier: int = attribute(
        AttributeName.TENSOR_RAGGED_OFFSET_MULTIPLIER, AttributeType.INT64, default=1
    )
    constant_value: float | int | None = attribute(
        AttributeName.TENSOR_CONSTANT_VALUE,
        AttributeType.DOUBLE,
        AttributeType.FLOAT,
        AttributeType.INT64,
        AttributeType.VOID_PTR,
        default=None,
    )
    name: str = ""

    def __post_init__(self) -> None:
        self._check_shape()
        self._check_placement()

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def element_count(self) -> int:
        return prod(self.dims)

    @cached_property
    def element_bytes(self) -> int:
        return dtypes.info(self.data_type).size_bytes

    @property
    def span_bytes(self) -> int:
        """Bytes from the base to the end of the last element; 0 for an empty tensor."""
        return span_elements(self.dims, self.strides) * self.element_bytes

    @property
    def label(self) -> str:
        """How messages name the tensor."""
        return f"tensor {self.name!r} (uid {self.uid})" if self.name else f"tensor uid {self.uid}"

    @property
    def is_scalar_value(self) -> bool:
        """True where the value travels with the launch and not through device memory."""
        return self.is_by_value or self.constant_value is not None

    def _check_shape(self) -> None:
        facts = dtypes.info(self.data_type)
        if not 1 <= len(self.dims) <= DIM_MAX:
            raise BadParamError.at(f"{self.label}.dims", expected=f"1 to {DIM_MAX} dimensions", got=list(self.dims))
        if len(self.strides) != len(self.dims):
            raise BadParamError.at(
                f"{self.label}.strides",
                expected=f"{len(self.dims)} strides, one for each dimension",
                got=list(self.strides),
            )
        if min(self.dims) < 0:
            raise BadParamError.at(f"{self.label}.dims", expected="extents >= 0", got=list(self.dims))
        if min(self.strides) < 0:
            raise BadParamError.at(f"{self.label}.strides", expected="strides >= 0", got=list(self.strides))
        if self.span_bytes > MAX_SPAN_BYTES:
            raise BadParamError.at(
                f"{self.label}.strides", expected=f"at most {MAX_SPAN_BYTES} bytes", got=f"{self.span_bytes} bytes"
            )
        alignment = self.alignment_bytes
        if alignment < facts.size_bytes or alignment & (alignment - 1):
            raise BadParamError.at(
                f"{self.label}.alignment_bytes",
                expected=f"a power of two of at least the element size {facts.size_bytes}",
                got=alignment,
            )

    def _check_placement(self) -> None:
        if self.is_by_value and self.is_virtual:
            raise BadParamError.at(f"{self.label}.is_by_value", expected="false for a virtual tensor", got=True)
        if self.is_scalar_value and self.element_count != 1:
            raise BadParamError.at(
                f"{self.label}.dims", expected="one element in a by-value tensor", got=list(self.dims)
            )
        if self.vector_count != 1:
            raise UnsupportedDataTypeError.at(
                f"{self.label}.vector_count", expected="1", got=self.vector_count, hint="use NHWC strides instead"
            )
        if self.reordering is TensorReordering.F8_128x4:
            self._check_f8_128x4()
        elif self.reordering is not TensorReordering.NONE:
            raise NotSupportedError.at(
                f"{self.label}.reordering", expected="NONE or F8_128x4", got=self.reordering.name
            )

    def _check_f8_128x4(self) -> None:
        where, (rows, columns) = f"{self.label}: F8_128x4", (1, 1, *self.dims)[-2:]
        if self.rank < 2 or rows % TILE_ROWS or columns % TILE_COLUMNS:
            raise BadParamError.at(
                f"{where}.dims",
                expected=f"multiples of {TILE_ROWS} and {TILE_COLUMNS} as the last two extents",
                got=list(self.dims),
            )
        if self.strides != packed_strides(self.dims) or self.element_bytes != 1:
            raise BadParamError.at(
                f"{where}.strides", expected="row-major ones, of elements of one byte", got=list(self.strides)
            )


def memory_layout(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dims and strides of what lies in memory, in which the row-major order of the elements is that of the tensor.

    They are the tensor's own but for F8_128x4, where element (r, c) of a matrix lies in tile (r / 128, c / 4), tiles in
    row-major order, at r % 32 * 16 + r % 128 / 32 * 4 + c % 4 (the order in which tensor cores read scales).
    """
    if tensor.reordering is not TensorReordering.F8_128x4:
        return tensor.dims, tensor.strides
    *outer, rows, columns = tensor.dims
    tile = TILE_ROWS * TILE_COLUMNS
    dims = (*outer, rows // TILE_ROWS, 4, 32, columns // TILE_COLUMNS, TILE_COLUMNS)
    return dims, (*tensor.strides[:-2], columns * TILE_ROWS, 4, 16, tile, 1)


def span_elements(dims: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the base to just past the last element; 0 where an extent is 0."""
    if 0 in dims:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(dims, strides, strict=True))


def has_overlap(dims: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True unless each stride reaches past all elements that the smaller strides span.

    A few interlaced layouts without common elements count as overlapping too.
    """
    reach = 0
    for stride, extent in sorted(zip(strides, dims, strict=True)):
        if extent > 1 and stride <= reach:
            return 0 not in dims
        reach += (extent - 1) * stride
    return False


def packed_strides(dims: tuple[int, ...], order: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Strides of a packed tensor whose dimensions lie in memory in ``order``, outermost first (default: as given).

    Example: NHWC strides of an NCHW shape are ``packed_strides(dims, (0, 2, 3, 1))``.
    """
    strides = [0] * len(dims)
    step = 1
    for axis in reversed(order if order is not None else tuple(range(len(dims)))):
        strides[axis] = step
        step *= max(dims[axis], 1)
    return tuple(strides)


def channels_last_strides(dims: tuple[int, ...]) -> tuple[int, ...]:
    """NHWC-like strides for dims given as (n, c, spatial...)."""
    return packed_strides(dims, (*range(len(dims))[:1], *range(2, len(dims)), *range(len(dims))[1:2]))
