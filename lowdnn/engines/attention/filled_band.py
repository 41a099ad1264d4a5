"""The band that a mask of scores leaves whose fill is only known at execute.

    modified = seen ? scores : fill + stats        or        seen ? scores : fill

Where fill is minus infinity nothing outside of the band has a weight, and a kernel may pass over it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

from lowdnn.engines.attention.heads import kernel_bounds
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.band_pattern import band_of
from lowdnn.graph.product_operands import is_plain
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, ScalarType, ValueCase

_Producers = dict[int, PointwiseOperation]


@dataclass(frozen=True)
class FilledBand:
    """fill: by value; the bounds of ``SdpaBackward`` where it is minus infinity."""

    left: int | None
    right: int | None
    is_bottom_right: bool
    fill: Tensor

    @property
    def bounds(self) -> tuple[Argument, Argument]:
        """The kernels' left and right."""
        left, right = (
            ValueCase(self.fill.uid, ScalarType.I32, -inf, reach, without)
            for reach, without in zip(kernel_bounds(self.left, self.right), kernel_bounds(None, None), strict=True)
        )
        return left, right


def filled_band(operation: SdpaBackward) -> FilledBand | None:
    """The band of the last mask that ``inner`` puts on scores, where the operation has no band of its own."""
    inner, own = operation.inner, (operation.left, operation.right)
    if inner is None or own != (None, None):
        return None
    producers = {op.output.uid: op for op in inner.operations if isinstance(op, PointwiseOperation)}
    mask = producers.get(inner.made[0].uid)
    if mask is None or not is_plain(mask, PointwiseMode.BINARY_SELECT):
        return None
    comparison = producers.get(mask.operands["t"].uid)
    ends = _ends_at_lengths(operation, comparison, producers)
    return _band(mask, _fill(operation, mask.operands["b"], producers), producers, ends)


def filled_band_of(operations: Iterable[PointwiseOperation], scores: Tensor) -> FilledBand | None:
    """The band of the mask that the last of ``operations``, which makes ``scores``, is."""
    producers = {op.output.uid: op for op in operations}
    mask = producers.get(scores.uid)
    if mask is None or not is_plain(mask, PointwiseMode.BINARY_SELECT):
        return None
    fill = mask.operands["b"]
    return _band(mask, fill if fill.is_by_value else None, producers, {})


def _band(mask: PointwiseOperation, fill: Tensor | None, producers: _Producers, ends: _Producers) -> FilledBand | None:
    """ends: by uid, operations in the place of others where the band ends at the last queries and keys."""
    if fill is None:
        return None
    steps = tuple(ends.get(op.output.uid, op) for op in producers.values())
    lowest = replace(fill, is_by_value=False, constant_value=-inf)
    band = band_of((*steps, replace(mask, b=lowest)), mask.output)
    if band.left is band.right is None:
        return None
    return FilledBand(band.left, band.right, bool(ends), fill)


def _fill(operation: SdpaBackward, b: Tensor, producers: _Producers) -> Tensor | None:
    """The fill of the mask: the constant, or the constant to which the statistics are added."""
    total = producers.get(b.uid)
    if total is not None and is_plain(total, PointwiseMode.ADD) and total.operands["b"].uid == operation.stats.uid:
        b = total.operands["x"]
    return b if b.is_by_value else None


def _ends_at_lengths(
    operation: SdpaBackward, comparison: PointwiseOperation | None, producers: _Producers
) -> _Producers:
    """By uid, the index of queries in ``comparison`` before it is shifted to the last keys of each batch."""
    queries, keys = operation.seq_len_q, operation.seq_len_kv
    found: _Producers = {}
    for operand in () if comparison is None else comparison.operands.values():
        index = _before(PointwiseMode.SUB, operand, queries, producers)
        index = index and _before(PointwiseMode.ADD, index, keys, producers)
        row = None if index is None else producers.get(index.uid)
        if index is not None and row is not None and (row.mode, row.pointwise.axis) == (PointwiseMode.GEN_INDEX, 2):
            found[operand.uid] = PointwiseOperation(
                Pointwise(PointwiseMode.IDENTITY, DataType.INT32), x=index, y=operand
            )
    return found


def _before(mode: PointwiseMode, x: Tensor, lengths: Tensor | None, producers: _Producers) -> Tensor | None:
    """The operand to which ``mode`` adds ``lengths``, or from which it subtracts them, for ``x``; None if not so."""
    op = producers.get(x.uid)
    if op is None or lengths is None or op.mode is not mode or op.operands["b"].uid != lengths.uid:
        return None
    is_whole = (op.alpha1, op.alpha2) == (1.0, 1.0) and op.pointwise.compute_type is DataType.INT32
    return op.operands["x"] if is_whole else None
