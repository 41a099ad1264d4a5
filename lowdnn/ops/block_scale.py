"""Block-scale quantisation and dequantisation: blocks of ``block_size`` neighbours along one axis have one scale.

Scales in the order F8_128x4 have the last two extents rounded up to whole tiles, with zero bits beyond the blocks.

The axis is the one along which the scales' extent is that of the values divided by the block size, rounded up; the last
block may be shorter. Where several fit, it is the last of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import DataType, TensorReordering
from lowdnn.ops.tensor import TILE_COLUMNS, TILE_ROWS, Tensor
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError

#: Types of the scales: a power of two, 8 bits with a mantissa, anything.
SCALE_TYPES = (DataType.FP8_E8M0, DataType.FP8_E4M3, DataType.FLOAT)


def check(where: str, values: tuple[Tensor, Tensor], scale: Tensor, block_size: int, compute_type: DataType) -> None:
    """Checks the tensors of either operation; raises ShapeMismatchError, BadParamError, UnsupportedDataTypeError."""
    x, y = values
    if block_size < 1:
        raise BadParamError.at(f"{where}.block_size", expected="1 or more", got=block_size)
    if y.dims != x.dims:
        raise ShapeMismatchError.at(f"{where}.y.dims", expected=f"{list(x.dims)} as x", got=list(y.dims))
    if scale.data_type not in SCALE_TYPES:
        raise UnsupportedDataTypeError.at(
            f"{where}.scale.data_type", expected=" or ".join(t.name for t in SCALE_TYPES), got=scale.data_type.name
        )
    for port, tensor in (("x", x), ("y", y)):
        if dtypes.info(tensor.data_type).kind is not dtypes.Kind.FLOAT:
            raise UnsupportedDataTypeError.at(
                f"{where}.{port}.data_type", expected="a float type", got=tensor.data_type.name
            )
    if compute_type is not DataType.FLOAT:
        raise UnsupportedDataTypeError.at(f"{where}.compute_type", expected="FLOAT", got=compute_type.name)
    if not _axes(x.dims, scale, block_size):
        raise ShapeMismatchError.at(
            f"{where}.scale.dims",
            expected=f"{list(x.dims)} with one extent divided by {block_size}, rounded up"
            + ("" if scale.reordering is TensorReordering.NONE else ", in whole tiles of 128 by 4"),
            got=list(scale.dims),
        )


def block_axis(dims: tuple[int, ...], scale: Tensor, block_size: int) -> int:
    """The axis along which the blocks lie."""
    return _axes(dims, scale, block_size)[-1]


def scale_dims(
    dims: tuple[int, ...], axis: int, block_size: int, reordering: TensorReordering = TensorReordering.NONE
) -> tuple[int, ...]:
    """The scales' dims for blocks along ``axis``."""
    blocks = (*dims[:axis], -(-dims[axis] // block_size), *dims[axis + 1 :])
    if reordering is TensorReordering.NONE or len(blocks) < 2:
        return blocks
    tiles = zip(blocks[-2:], (TILE_ROWS, TILE_COLUMNS), strict=True)
    return (*blocks[:-2], *(-(-extent // side) * side for extent, side in tiles))


def in_tiles(scales: NDArray[np.float64], scale: Tensor) -> NDArray[np.float64]:
    """The blocks' scales under the dims of ``scale``."""
    zero = dtypes.to_float64(np.zeros(1, dtypes.info(scale.data_type).storage), scale.data_type)
    result = np.full(scale.dims, zero[0])
    result[tuple(map(slice, scales.shape))] = scales
    return result


def of_elements(scales: NDArray[np.float64], axis: int, block_size: int, extent: int) -> NDArray[np.float64]:
    """Each element's scale, from the blocks'."""
    return np.take(scales, np.arange(extent) // block_size, axis)


def of_blocks(scales: NDArray[np.float64], dims: tuple[int, ...], axis: int, block_size: int) -> NDArray[np.float64]:
    """The blocks' scales, without what fills up the tiles."""
    return scales[tuple(map(slice, scale_dims(dims, axis, block_size)))]


def _axes(dims: tuple[int, ...], scale: Tensor, block_size: int) -> list[int]:
    return [axis for axis in range(len(dims)) if scale_dims(dims, axis, block_size, scale.reordering) == scale.dims]
