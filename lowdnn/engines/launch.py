"""What several engines need to fill in a launch: dividers, sizes, bytes moved."""

from __future__ import annotations

from functools import lru_cache

from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Scalar, ScalarType

#: The greatest grid extent along x.
MAX_GRID_X = 2**31 - 1

#: The greatest extent that a ``Divider`` divides by.
MAX_EXTENT = 2**31 - 1


def ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


@lru_cache(maxsize=4096)
def divider(divisor: int) -> tuple[Scalar, ...]:
    """The fields of a ``Divider`` (``include/division.cuh``): divisor, multiplier, shift; divisor 1 to 2^31 - 1."""
    shift = (divisor - 1).bit_length()
    multiplier = (((1 << shift) - divisor) << 32) // divisor + 1
    return tuple(Scalar(ScalarType.U32, value) for value in (divisor, multiplier, shift))


def bytes_touched(tensor: Tensor) -> int:
    """Bytes of the tensor's elements, each counted once however often it repeats."""
    count = 1
    for extent, stride in zip(tensor.dims, tensor.strides, strict=True):
        count *= extent if stride else min(extent, 1)
    return count * tensor.element_bytes
