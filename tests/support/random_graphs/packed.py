"""Sequences that are packed one behind the other, and masks that are packed into bits, for growing graphs."""

from __future__ import annotations

import numpy as np

from lowdnn.enums import DataType
from lowdnn.ops.bit_mask import PackBits, UnpackBits, bits_of
from lowdnn.ops.ragged import RaggedLoad, RaggedStore
from lowdnn.ops.tensor import Tensor, packed_strides
from tests.support.random_graphs.growth import ANY_TYPE, Array, Dims, Growth


def ragged_load(growth: Growth) -> None:
    """A load of rows whose heads lie together, or of heads whose rows do."""
    padded, lengths = _sequences(growth)
    _, heads, _, size = padded
    dims = (1, heads, int(lengths.sum()), size)
    strides = packed_strides(dims, growth.choose(((0, 2, 1, 3), (0, 1, 2, 3))))
    x = growth.input(dims, growth.choose(ANY_TYPE), strides=strides)
    offsets, multiplier = _offsets(growth, lengths, strides[2])
    growth.add(RaggedLoad(x, growth.output(padded, x.data_type), offsets, multiplier))


def ragged_store(growth: Growth) -> None:
    """A store of sequences that fill the packed tensor."""
    padded, lengths = _sequences(growth)
    x = growth.like(padded, growth.choose(ANY_TYPE))
    y = growth.output((1, padded[1], int(lengths.sum()), padded[3]), x.data_type)
    offsets, multiplier = _offsets(growth, lengths, y.strides[2])
    growth.add(RaggedStore(x, y, offsets, multiplier))


def pack_bits(growth: Growth) -> None:
    dims = _dims(growth)
    x = growth.input(dims, DataType.BOOLEAN, strides=packed_strides(dims))
    like = bits_of(x)
    growth.add(PackBits(x, growth.output(like.dims, DataType.UINT8, strides=like.strides)))


def unpack_bits(growth: Growth) -> None:
    dims = _dims(growth)
    y = growth.output(dims, DataType.BOOLEAN, strides=packed_strides(dims))
    like = bits_of(y)
    values = growth.rng.integers(0, 256, like.dims)
    growth.add(UnpackBits(growth.packed_input(like.dims, DataType.UINT8, values, "bits"), y))


def _dims(growth: Growth) -> Dims:
    rank = 1 + int(growth.rng.integers(4))
    return tuple(growth.extent(f"x{axis}", 7) for axis in range(rank))


def _sequences(growth: Growth) -> tuple[Dims, Array]:
    """The dims of the padded tensor, and the rows of each batch."""
    names = (("b", 4), ("h", 3), ("s", 9), ("d", 8))
    padded = tuple(growth.extent(name, most) for name, most in names)
    return padded, growth.rng.integers(0, padded[2] + 1, padded[0])


def _offsets(growth: Growth, lengths: Array, row_elements: int) -> tuple[Tensor, int]:
    """The offsets of the sequences, and their multiplier."""
    multiplier = growth.choose((1, row_elements)) if row_elements else 1
    bounds = np.cumsum([0, *lengths]).reshape(-1, 1, 1, 1) * (row_elements // multiplier)
    kind = growth.choose((DataType.INT32, DataType.INT64))
    return growth.packed_input(bounds.shape, kind, bounds, "offsets"), multiplier
