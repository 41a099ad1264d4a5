"""Moves of elements, scales of blocks, band matrices, rotations and pages for growing graphs."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from lowdnn import dtypes
from lowdnn.enums import DataType, ReshapeMode, TensorReordering
from lowdnn.ops import block_scale
from lowdnn.ops import concat as concat_op
from lowdnn.ops import slice as slice_op
from lowdnn.ops import transpose as transpose_op
from lowdnn.ops.block_mask import BlockMask, mask_dims
from lowdnn.ops.block_scale_axes import BlockScaleDequantizeByAxes
from lowdnn.ops.block_scale_dequantize import BlockScaleDequantize
from lowdnn.ops.block_scale_quantize import BlockScaleQuantize
from lowdnn.ops.concat import Concat
from lowdnn.ops.contract_band_matrix import ContractBandMatrix
from lowdnn.ops.expand_band_matrix import ExpandBandMatrix
from lowdnn.ops.paged_cache_load import PagedCacheLoad
from lowdnn.ops.reshape import Reshape
from lowdnn.ops.rope_backward import RopeBackward
from lowdnn.ops.rope_forward import RopeForward
from lowdnn.ops.slice import Slice
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.ops.transpose import Transpose
from tests.support.random_graphs.growth import ANY_TYPE, FLOATS, SMALL_FLOATS, Dims, Growth


def transpose(growth: Growth) -> None:
    x = _any(growth)
    permutation = tuple(int(axis) for axis in growth.rng.permutation(x.rank))
    growth.add(Transpose(x, _moved(growth, transpose_op.output_dims(x.dims, permutation), x), permutation))


def reshape(growth: Growth) -> None:
    """A reshape that merges or splits dims."""
    x = _any(growth)
    place = int(growth.rng.integers(x.rank))
    before, after = x.dims[:place], x.dims[place:]
    dims: Dims = growth.choose(((*before, prod(after)), (prod(x.dims),), (*before, 1, *after), tuple(reversed(x.dims))))
    growth.add(Reshape(x, _moved(growth, dims, x), ReshapeMode.LOGICAL))


def slice_(growth: Growth) -> None:
    x = _any(growth)
    start = tuple(int(growth.rng.integers(0, extent + 1)) if growth.chance(0.5) else 0 for extent in x.dims)
    limit = tuple(
        int(growth.rng.integers(first, extent + 1)) if growth.chance(0.3) else extent
        for first, extent in zip(start, x.dims, strict=True)
    )
    steps = tuple(growth.choose((1, 1, 2, 3)) for _ in x.dims)
    growth.add(Slice(x, _moved(growth, slice_op.output_dims(x.dims, start, limit, steps), x), start, limit, steps))


def concat(growth: Growth) -> None:
    first = _any(growth)
    axis, inputs = int(growth.rng.integers(first.rank)), [first]
    for number in range(1 + int(growth.rng.integers(3))):
        dims = (*first.dims[:axis], growth.extent(f"part{number}", 5), *first.dims[axis + 1 :])
        inputs.append(growth.like(dims, first.data_type))
    y = _moved(growth, concat_op.output_dims([tensor.dims for tensor in inputs], axis), first)
    growth.add(Concat(axis, tuple(inputs), y))


def block_scale_quantize(growth: Growth) -> None:
    x, size = _floats(growth), growth.choose((1, 2, 4, 16, 32))
    axis = int(growth.rng.integers(x.rank))
    y = growth.output(x.dims, growth.choose(SMALL_FLOATS))
    order = _order(growth, x)
    dims, in_tiles = block_scale.scale_dims(x.dims, axis, size, order), order is not TensorReordering.NONE
    kind, strides = growth.choose(block_scale.SCALE_TYPES), packed_strides(dims) if in_tiles else None
    scale = growth.output(dims, kind, strides=strides, is_stored=in_tiles or None, name="scale")
    scale = replace(scale, reordering=order)
    growth.add(BlockScaleQuantize(x, y, scale, DataType.FLOAT, size))


def block_scale_dequantize(growth: Growth) -> None:
    growth.add(_dequantized(growth))


def block_scale_dequantize_by_axes(growth: Growth) -> None:
    """Adds a dequantisation with the sizes of some of the last axes."""
    given = _dequantized(growth)
    first = int(growth.rng.integers(given.axis + 1))
    sizes = tuple(given.block_size if axis == given.axis else 1 for axis in range(first, given.x.rank))
    growth.add(BlockScaleDequantizeByAxes(given.x, given.scale, given.y, given.compute_type, sizes))


def _dequantized(growth: Growth) -> BlockScaleDequantize:
    x, size = _floats(growth), growth.choose((1, 2, 4, 16, 32))
    order = _order(growth, x)
    dims = block_scale.scale_dims(x.dims, int(growth.rng.integers(x.rank)), size, order)
    values = growth.choose((0.5, 1.0, 2.0)) + growth.rng.random(dims)
    scale = replace(
        growth.packed_input(dims, growth.choose(block_scale.SCALE_TYPES), values, "scale"), reordering=order
    )
    return BlockScaleDequantize(x, scale, growth.output(x.dims, growth.float_type()), DataType.FLOAT, size)


def expand_band_matrix(growth: Growth) -> None:
    lower, upper = (int(growth.rng.integers(4)) for _ in range(2))
    rank = 2 + int(growth.rng.integers(3))
    axis = int(growth.rng.integers(1, rank))
    dims = [growth.extent(f"x{place}", 6) for place in range(rank)]
    matrix, dims[axis] = tuple(dims), lower + 1 + upper
    x = growth.like(tuple(dims), growth.choose(FLOATS))
    growth.add(ExpandBandMatrix(x, _moved(growth, matrix, x), lower, upper, axis, growth.choose((0.0, -2.0))))


def contract_band_matrix(growth: Growth) -> None:
    x = _any(growth, least_rank=2)
    lower, upper = (int(growth.rng.integers(4)) for _ in range(2))
    axis = int(growth.rng.integers(1, x.rank))
    dims = (*x.dims[:axis], lower + 1 + upper, *x.dims[axis + 1 :])
    growth.add(ContractBandMatrix(x, _moved(growth, dims, x), lower, upper, axis, growth.choose((0.0, -2.0))))


def rope(growth: Growth) -> None:
    dims = tuple(growth.extent(name, 4) for name in "bhs")
    x = growth.like((*dims, 2 * growth.extent("pairs", 6)), growth.float_type())
    size = growth.choose((0, 0, 2 * (x.dims[3] // 4)))
    freqs = growth.input((dims[2], 1, 1, size or x.dims[3]), growth.float_type(), name="freqs")
    y = growth.output(x.dims, growth.float_type())
    growth.add(growth.choose((RopeForward, RopeBackward))(x, y, freqs, growth.choose((1.0, 0.5)), size))


def paged_cache_load(growth: Growth) -> None:
    batch, heads, length, size = (growth.extent(name, most) for name, most in zip("bhsd", (3, 3, 9, 8), strict=True))
    rows = growth.choose((1, 2, 4))
    pages, entries = 1 + int(growth.rng.integers(5)), -(-length // rows) + int(growth.rng.integers(2))
    container = growth.input((pages, heads, rows, size), growth.choose(ANY_TYPE), name="container")
    table = growth.rng.integers(0, pages, (batch, 1, entries, 1))
    lengths = growth.rng.integers(0, length + 1, (batch, 1, 1, 1))
    growth.add(
        PagedCacheLoad(
            container,
            growth.output((batch, heads, length, size), container.data_type),
            growth.packed_input(lengths.shape, growth.choose((DataType.INT32, DataType.INT64)), lengths, "sequence"),
            growth.packed_input(table.shape, DataType.INT32, table, "page_table"),
        )
    )


def block_mask(growth: Growth) -> None:
    x = growth.value(
        lambda: growth.input(tuple(growth.extent(name, 9) for name in "bhqk"), growth.float_type()),
        lambda tensor: tensor.rank == 4 and dtypes.info(tensor.data_type).kind is dtypes.Kind.FLOAT,
    )
    dims = mask_dims(x.dims)
    mask = growth.packed_input(dims, DataType.UINT8, growth.rng.integers(0, 256, dims), "mask")
    growth.add(BlockMask(x, mask, growth.output(x.dims, growth.float_type())))


def _any(growth: Growth, least_rank: int = 1) -> Tensor:
    rank = least_rank + int(growth.rng.integers(4))
    return growth.value(
        lambda: growth.input(tuple(growth.extent(f"x{axis}", 6) for axis in range(rank)), growth.choose(ANY_TYPE)),
        lambda tensor: tensor.rank >= least_rank,
    )


def _floats(growth: Growth) -> Tensor:
    rank = 1 + int(growth.rng.integers(4))
    kinds = (*FLOATS, *FLOATS, *SMALL_FLOATS)
    return growth.value(
        lambda: growth.input(tuple(growth.extent(f"x{axis}", 8) for axis in range(rank)), growth.choose(kinds)),
        lambda tensor: dtypes.info(tensor.data_type).kind is dtypes.Kind.FLOAT,
    )


def _order(growth: Growth, x: Tensor) -> TensorReordering:
    """How scales lie: those of tensors of 2 axes or more also in tiles."""
    return TensorReordering.F8_128x4 if x.rank > 1 and growth.chance(0.3) else TensorReordering.NONE


def _moved(growth: Growth, dims: Dims, x: Tensor) -> Tensor:
    """The output of a move: mostly of the type of x."""
    is_float = dtypes.info(x.data_type).kind is dtypes.Kind.FLOAT
    return growth.output(dims, growth.float_type() if is_float and growth.chance(0.2) else x.data_type)
