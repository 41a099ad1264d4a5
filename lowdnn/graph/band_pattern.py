"""Masks of attention scores that leave a band around a diagonal, as pointwise operations write them, and tiles of it:

    y = row + a >= column + b ? x : -infinity        and the like with >, <=, <; row, column: GEN_INDEX of either axis
    y = column < length ? x : -infinity              length: a tensor, one number for each batch; and the like of rows
    y = BlockMask(x, mask)

A kernel that knows the band passes over what is outside of it, and needs no mask for what is well inside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from lowdnn import dtypes
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.ops.block_mask import BlockMask
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.tensor import Tensor

_ROW_AXIS, _COLUMN_AXIS = 2, 3
#: Types of indices that hold each one, of lengths, and of scores that hold minus infinity.
_INDEX_TYPES = (DataType.INT32, DataType.INT64, DataType.FLOAT, DataType.DOUBLE)
_LENGTH_TYPES = (DataType.INT32, DataType.INT64)
_SCORE_TYPES = (DataType.FLOAT, DataType.DOUBLE, DataType.HALF, DataType.BFLOAT16)
#: The largest offset of an index, so that all types hold the sum.
_MAX_OFFSET = 2**23
#: ``x mode b`` as a bound of the integer ``x - b``: (whether it is a lower bound, 1 if the bound itself is excluded).
_COMPARISONS = {
    PointwiseMode.CMP_GE: (True, 0),
    PointwiseMode.CMP_GT: (True, 1),
    PointwiseMode.CMP_LE: (False, 0),
    PointwiseMode.CMP_LT: (False, 1),
}
_Producers = dict[int, PointwiseOperation]


@dataclass(frozen=True)
class Band:
    """Scores of row r and column c are minus infinity unless r - left <= c <= r + right, c < lengths[batch] and
    r < query_lengths[batch].

    None: no such bound.  blocks: the mask of a BlockMask, outside of whose tiles they are so too.
    scores: the scores that the masks of the band are applied to.
    """

    scores: Tensor
    left: int | None = None
    right: int | None = None
    lengths: Tensor | None = None
    query_lengths: Tensor | None = None
    blocks: Tensor | None = None


@dataclass(frozen=True)
class _Index:
    """axis: the axis of GEN_INDEX, to which ``offset`` is added."""

    axis: int
    offset: int


def band_of(operations: tuple[PointwiseOperation | BlockMask, ...], scores: Tensor) -> Band:
    """The band that the last of ``operations``, of which ``scores`` is the result, leave of (B, H, S_q, S_kv)."""
    producers = {op.output.uid: op for op in operations if isinstance(op, PointwiseOperation)}
    blocks = {op.y.uid: op for op in operations if isinstance(op, BlockMask)}
    band: Band | None = Band(scores)
    while band is not None:
        found, uid = band, band.scores.uid
        band = _with_blocks(found, blocks[uid]) if uid in blocks else _narrowed(found, producers.get(uid), producers)
    return found


def _with_blocks(band: Band, mask: BlockMask) -> Band | None:
    if band.blocks is not None or not _keeps(mask.y, mask.x):
        return None
    return replace(band, scores=mask.x, blocks=mask.mask)


def _narrowed(band: Band, mask: PointwiseOperation | None, producers: _Producers) -> Band | None:
    """The band with ``mask``, or None where it is no such mask."""
    if mask is None or mask.mode is not PointwiseMode.BINARY_SELECT or mask.operands["b"].constant_value != -inf:
        return None
    if (mask.alpha1, mask.alpha2) != (1.0, 1.0) or not _keeps(mask.output, mask.operands["x"], mask.pointwise):
        return None
    comparison = producers.get(mask.operands["t"].uid)
    if comparison is None or comparison.mode not in _COMPARISONS or not _is_of_indices(comparison):
        return None
    scores, (left, right) = mask.operands["x"], (comparison.operands["x"], comparison.operands["b"])
    from_below, gap = _COMPARISONS[comparison.mode]
    x, b = (_index(tensor, mask.output.dims, producers) for tensor in (left, right))
    if x is None or b is None:
        return _with_lengths(replace(band, scores=scores), x, right, comparison.mode, producers)
    if {x.axis, b.axis} != {_ROW_AXIS, _COLUMN_AXIS}:
        return None
    # x - b >= gap, or x - b <= -gap, where x and b are row and column with their offsets.
    row, column = (x, b) if x.axis == _ROW_AXIS else (b, x)
    if (x.axis == _ROW_AXIS) == from_below:
        bound = row.offset - column.offset - gap
        return replace(band, scores=scores, right=bound if band.right is None else min(band.right, bound))
    bound = column.offset - row.offset - gap
    return replace(band, scores=scores, left=bound if band.left is None else min(band.left, bound))


def _with_lengths(
    band: Band, index: _Index | None, lengths: Tensor, mode: PointwiseMode, producers: _Producers
) -> Band | None:
    is_given = lengths.uid not in producers and not lengths.is_scalar_value and lengths.data_type in _LENGTH_TYPES
    if not is_given or lengths.dims[1:] != (1, 1, 1) or mode is not PointwiseMode.CMP_LT:
        return None
    if index == _Index(_COLUMN_AXIS, 0) and band.lengths is None:
        return replace(band, lengths=lengths)
    if index == _Index(_ROW_AXIS, 0) and band.query_lengths is None:
        return replace(band, query_lengths=lengths)
    return None


def _is_of_indices(op: PointwiseOperation) -> bool:
    """Whether the operation takes its operands without factors, in a type that holds every index exactly."""
    return (op.alpha1, op.alpha2) == (1.0, 1.0) and op.pointwise.compute_type in _INDEX_TYPES


def _keeps(y: Tensor, x: Tensor, arithmetic: Pointwise | None = None) -> bool:
    """Whether a mask from ``x`` to ``y`` keeps the scores' values, in types that have minus infinity."""
    steps = (y.data_type,) if arithmetic is None else (arithmetic.compute_type, y.data_type)
    return all(step in _SCORE_TYPES and dtypes.holds(step, x.data_type) for step in steps)


def _index(tensor: Tensor, dims: tuple[int, ...], producers: _Producers) -> _Index | None:
    """GEN_INDEX along rows or columns of ``dims``, with whole constants added."""
    op = producers.get(tensor.uid)
    if op is None or not _is_of_indices(op) or op.output.data_type not in _INDEX_TYPES:
        return None
    if op.mode is PointwiseMode.GEN_INDEX:
        axis = op.pointwise.axis
        return _Index(axis, 0) if op.output.dims[axis] == dims[axis] else None
    if op.mode is PointwiseMode.IDENTITY:
        return _index(op.operands["x"], dims, producers)
    if op.mode not in (PointwiseMode.ADD, PointwiseMode.SUB):
        return None
    constant, index = op.operands["b"].constant_value, _index(op.operands["x"], dims, producers)
    if index is None or constant is None or not abs(constant) <= _MAX_OFFSET or constant != int(constant):
        return None
    sign = 1 if op.mode is PointwiseMode.ADD else -1
    return replace(index, offset=index.offset + sign * int(constant))
