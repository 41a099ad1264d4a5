"""Reductions in a case's epilogue: ``exits=genstats+amax``.

genstats: sum and sum of squares over all axes but the kept one, which is the channels' axis.  sum: the sum alone.
rowsum, rowmax: the sum, the largest element over the kept axis alone.  amax: the largest magnitude of all elements.
Each is stored in the compute type.
"""

from __future__ import annotations

from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType, ReduceTensorOp
from lowdnn.ops.tensor import Tensor

GEN_STATS = "genstats"
_SUM, _ROW_SUM, _ROW_MAX, _AMAX = "sum", "rowsum", "rowmax", "amax"

#: The names that a case may have.
NAMES = (GEN_STATS, _SUM, _ROW_SUM, _ROW_MAX, _AMAX)

#: Products of inputs in -1, 0 and 1 of which the sum, and that of the sums' squares, stay far below 2**24.
_MAX_EXACT_PRODUCTS = 2**20


def build(builder: CaseBuilder, names: tuple[str, ...], value: Tensor, kept_axis: int, compute_type: DataType) -> None:
    """Adds the reductions of ``value``; ``kept_axis`` is that of genstats and sum."""
    everything = tuple(range(value.rank))
    others = tuple(axis for axis in everything if axis != kept_axis)
    reductions = {
        _SUM: (ReduceTensorOp.ADD, others),
        _ROW_SUM: (ReduceTensorOp.ADD, (kept_axis,)),
        _ROW_MAX: (ReduceTensorOp.MAX, (kept_axis,)),
        _AMAX: (ReduceTensorOp.AMAX, everything),
    }
    for name in names:
        if name == GEN_STATS:
            builder.gen_stats(value, compute_type=compute_type, store=compute_type)
        else:
            operator, axes = reductions[name]
            builder.reduction(operator, value, axes, compute_type=compute_type, store=compute_type)


def is_exact(names: tuple[str, ...], length: int, elements: int) -> bool:
    """True where exact inputs of ``exact_length`` keep the sums of ``elements`` sums of ``length`` products exact."""
    return not _adds(names) or length * elements <= _MAX_EXACT_PRODUCTS


def exact_length(names: tuple[str, ...], length: int) -> int:
    """The sum length for which exact inputs are drawn. If sums are summed again, it is so large that the inputs are -1,
    0 and 1."""
    return max(length, _MAX_EXACT_PRODUCTS) if _adds(names) else length


def _adds(names: tuple[str, ...]) -> bool:
    return not {GEN_STATS, _SUM, _ROW_SUM}.isdisjoint(names)
