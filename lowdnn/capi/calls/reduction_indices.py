"""The places of minima and maxima among the elements that are reduced.

    index[c] = the least place of an element of A that equals the extreme of c

A place counts the elements of the reduced axes in row-major order. Where NaN propagates, it is the extreme, and the
first one's place is the index.
"""

from __future__ import annotations

from math import prod
from typing import Final

from lowdnn import dtypes
from lowdnn.capi.classic_enums import IndicesType
from lowdnn.capi.descriptors import TensorDescriptor
from lowdnn.capi.graphs import Builder
from lowdnn.capi.memory import Address
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import NotSupportedError

EXTREMES: Final = (ReduceTensorOp.MIN, ReduceTensorOp.MAX)
#: The data types of what an index is stored as, lowest bytes first: there is none of 16 bits.
_STORED: Final = {
    IndicesType.BITS_8: (DataType.UINT8,),
    IndicesType.BITS_16: (DataType.UINT8, DataType.UINT8),
    IndicesType.BITS_32: (DataType.INT32,),
    IndicesType.BITS_64: (DataType.INT64,),
}
#: Places are exact in the type in which they are computed.
_PLACE: Final = DataType.DOUBLE


def index_bytes(indices_type: IndicesType) -> int:
    return sum(dtypes.info(data_type).size_bytes for data_type in _STORED[indices_type])


def add_indices(
    builder: Builder, x: Tensor, extreme: Tensor, address: Address, indices_type: IndicesType, name: str
) -> None:
    """Adds the indices, packed in row-major order at ``address``. ``extreme``: of x, in its compute type.

    Raises NotSupportedError where more elements are reduced than the type can count.
    """
    axes = [axis for axis in range(x.rank) if x.dims[axis] != extreme.dims[axis]]
    _check_count(prod(x.dims[axis] for axis in axes), indices_type, name)
    places = _places(builder, x, axes)
    is_extreme = builder.pointwise(PointwiseMode.CMP_EQ, builder.virtual(x.dims, DataType.BOOLEAN), x, extreme)
    if dtypes.info(x.data_type).kind is dtypes.Kind.FLOAT:
        is_nan = builder.pointwise(PointwiseMode.CMP_NEQ, builder.virtual(x.dims, DataType.BOOLEAN), x, x)
        either = builder.virtual(x.dims, DataType.BOOLEAN)
        is_extreme = builder.pointwise(PointwiseMode.LOGICAL_OR, either, is_extreme, is_nan)
    beyond = builder.constant(float(x.element_count), x.rank, _PLACE)
    candidates = builder.pointwise(
        PointwiseMode.BINARY_SELECT, builder.virtual(x.dims, _PLACE), places, beyond, is_extreme
    )
    index = builder.reduced(candidates, builder.virtual(extreme.dims, _PLACE), ReduceTensorOp.MIN)
    _store(builder, index, address, _STORED[indices_type], name)


def _places(builder: Builder, x: Tensor, axes: list[int]) -> Tensor:
    """Adds the index of each element among those that are reduced with it."""
    places, step = builder.constant(0.0, x.rank, _PLACE), 1
    for axis in reversed(axes):
        along = builder.pointwise(
            PointwiseMode.GEN_INDEX, builder.virtual(x.dims, _PLACE), x, parameters={"axis": axis}
        )
        places = builder.pointwise(
            PointwiseMode.ADD, builder.virtual(x.dims, _PLACE), along, places, alphas=(float(step), 1.0)
        )
        step *= x.dims[axis]
    return places


def _store(builder: Builder, index: Tensor, address: Address, stored: tuple[DataType, ...], name: str) -> None:
    """Adds what writes the index: whole, or each byte by itself."""
    strides = tuple(len(stored) * stride for stride in packed_strides(index.dims))
    for place, data_type in enumerate(stored):
        descriptor = TensorDescriptor(data_type, index.dims, strides)
        part = builder.result(descriptor, address and address + place, f"{name}.indices")
        if len(stored) == 1:
            builder.pointwise(PointwiseMode.IDENTITY, part, index)
            return
        radix = builder.constant(256.0, index.rank, _PLACE)
        whole = builder.pointwise(
            PointwiseMode.FLOOR, builder.virtual(index.dims, _PLACE), index, alphas=(256.0**-place,)
        )
        builder.pointwise(PointwiseMode.MOD, part, whole, radix)


def _check_count(count: int, indices_type: IndicesType, name: str) -> None:
    bits = 8 * index_bytes(indices_type)
    # Indices of 32 and 64 bits are signed here.
    most = 1 << (bits if bits < 32 else bits - 1)
    if count > most:
        raise NotSupportedError.at(
            f"{name}.reduceTensorIndicesType", expected=f"at most {most} elements for {indices_type.c_name}", got=count
        )
