"""Reductions at the exits of a wgmma engine: host side of ``include/exit_reductions.cuh``.

The kernel reduces what it stores while it is on its way out; ``reduction/reduction_combine.cu`` joins the totals of its
warpgroups. One reduction of each column and one of everything can leave together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from lowdnn.engines.gemm.output_space import OutputSpace
from lowdnn.engines.gemm.plan_parts import PlanParts
from lowdnn.engines.launch import aligned_bytes
from lowdnn.engines.reduction.layout import layout_of
from lowdnn.engines.reduction.stages import Combination, operator_of
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.graph.reduction_pattern import AnyReduction, FusedReduction, match_reduction
from lowdnn.ops.base import outputs_of
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import WorkspacePointer

_NONE = "NoOperator"
#: Warps of a warpgroup, of which each has a total over everything.
_WARPS = 4


@dataclass(frozen=True)
class OutputExits:
    """Reductions of a tensor of the epilogue; by default none.

    column: over the rows, of the stored tensor.  whole: over everything.
    """

    column: FusedReduction | None = None
    whole: FusedReduction | None = None

    @classmethod
    def of(cls, exits: Sequence[AnyReduction], dag: PointwiseDag, output: OutputSpace) -> OutputExits | str:
        """``exits`` behind ``dag``, or why the kernels do not compute them."""
        columns: list[FusedReduction] = []
        whole: list[FusedReduction] = []
        if exits and 0 in dag.dims:
            return f"{type(exits[0]).__name__}.x.dims: expected no extent of 0, got {list(dag.dims)}"
        for operation in exits:
            found = _alone(operation)
            name = type(operation).__name__
            if found.compute_type is not DataType.FLOAT:
                return f"{name}.compute_type: expected FLOAT, got {found.compute_type.name}"
            kept = _kept(found)
            if kept and (kept != _column_axes(output, dag) or prod(_dims(found)) != output.columns):
                return f"{name}: expected one result, or one for each of the output's columns, got axes {kept}"
            if kept and [tensor.uid for tensor in dag.stores] != [operation.x.uid]:
                return f"{name}.x: expected the tensor that is stored, and no other, got {operation.x.label}"
            (columns if kept else whole).append(found)
        if len(columns) > 1 or len(whole) > 1:
            return f"operations: expected one reduction of columns and one of everything, got {len(exits)} reductions"
        return cls(columns[0] if columns else None, whole[0] if whole else None)

    @property
    def exist(self) -> bool:
        return bool(self.column or self.whole)

    @property
    def handed_back(self) -> Tensor | None:
        """What the functor hands back, to be reduced over everything."""
        return self.whole.operation.x if self.whole else None

    @property
    def macros(self) -> tuple[tuple[str, int | str], ...]:
        """What a kernel needs for ``wgmma_output.cuh`` with STORE_MAP."""
        column, whole = (operator_of(found.operation) if found else _NONE for found in (self.column, self.whole))
        return (("COLUMN_OPERATOR", column), ("WHOLE_OPERATOR", whole))

    @property
    def label(self) -> str:
        """As it stands in kernel names; empty where there are none."""
        kinds = (("columns", self.column), ("whole", self.whole))
        return "".join(f"_{kind}_{operator_of(found.operation).lower()}" for kind, found in kinds if found)

    def totals_bytes(self, workers: int) -> int:
        """Of the totals of ``workers`` warpgroups."""
        return sum(combination.partials_bytes for combination in self._combinations(workers))

    def reserve(self, parts: PlanParts, workers: int) -> tuple[WorkspacePointer, ...]:
        """Room for the totals of ``workers`` warpgroups: the first fields of ``Epilogue::Output``."""
        sizes = (aligned_bytes(combination.partials_bytes) for combination in self._combinations(workers))
        return tuple(WorkspacePointer(parts.reserve(size)) for size in sizes)

    def combine(self, parts: PlanParts, workers: int, totals: Sequence[WorkspacePointer]) -> None:
        """Launches that join the ``totals``."""
        for combination, partials in zip(self._combinations(workers), totals, strict=True):
            parts.launches.append(combination.launch(parts.kernel(combination.kernel()), partials))

    def _combinations(self, workers: int) -> Iterator[Combination]:
        """In the order of the kernel's parameters."""
        if self.column:
            yield Combination(self.column, layout_of(self.column), workers, overlaps=True)
        if self.whole:
            yield Combination(self.whole, layout_of(self.whole), workers * _WARPS, overlaps=True)


#: Nothing is reduced.
NO_EXITS = OutputExits()


def _alone(operation: AnyReduction) -> FusedReduction:
    """The reduction as it would be in a graph by itself, reading ``x`` from memory."""
    stored = replace(operation, x=replace(operation.x, is_virtual=False))
    found = match_reduction(OperationGraph([stored]))
    assert isinstance(found, FusedReduction), found
    return found


def _kept(fused: FusedReduction) -> set[int]:
    """The axes along which there are several results."""
    return {axis for axis, extent in enumerate(_dims(fused)) if extent > 1}


def _dims(fused: FusedReduction) -> tuple[int, ...]:
    return next(iter(outputs_of(fused.operation).values())).dims


def _column_axes(output: OutputSpace, dag: PointwiseDag) -> set[int]:
    """The DAG's axes that make up the columns, without those of extent 1."""
    return {axis for origin in output.space.origin[output.row_axes :] for axis in origin if dag.dims[axis] > 1}
