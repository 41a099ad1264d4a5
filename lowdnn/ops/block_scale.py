"""What block-scale quantisation and dequantisation share: blocks of ``block_size`` neighbours along one axis have one
scale.

The axis is the one along which the scales' extent is that of the values divided by the block size, rounded up; the last
block may be shorter. Where several fit, it is the last of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import DataType
from lowdnn.ops.tensor import Tensor
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
    if not _axes(x.dims, scale.dims, block_size):
        raise ShapeMismatchError.at(
            f"{where}.scale.dims",
            expected=f"{list(x.dims)} with one extent divided by {block_size}, rounded up",
            got=list(scale.dims),
        )


def block_axis(dims: tuple[int, ...], scale_dims: tuple[int, ...], block_size: int) -> int:
    """The axis along which the blocks lie."""
    return _axes(dims, scale_dims, block_size)[-1]


def scale_dims(dims: tuple[int, ...], axis: int, block_size: int) -> tuple[int, ...]:
    """The scales' dims for blocks along ``axis``."""
    return (*dims[:axis], -(-dims[axis] // block_size), *dims[axis + 1 :])


def of_elements(scales: NDArray[np.float64], axis: int, block_size: int, extent: int) -> NDArray[np.float64]:
    """Each element's scale, from the blocks'."""
    return np.take(scales, np.arange(extent) // block_size, axis)


def _axes(dims: tuple[int, ...], found: tuple[int, ...], block_size: int) -> list[int]:
    return [axis for axis in range(len(dims)) if scale_dims(dims, axis, block_size) == found]
