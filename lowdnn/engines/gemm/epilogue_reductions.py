"""Reductions in the epilogue of a product: the parts that all engines share.

A kernel reduces the stored tensor, or another value of its epilogue, in registers: over each column of the product,
over each row, and over everything. ``reduction/reduction_combine.cu`` combines the kernel's partial totals. A product
can have one reduction of each kind. Device side: ``include/epilogue/epilogue_reductions.cuh`` and
``staged_reductions.cuh`` (wgmma), ``tile_reductions.cuh`` (mma.sync), ``thread_reductions.cuh`` (depthwise).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from lowdnn.engines.gemm.output_space import OutputSpace
from lowdnn.engines.launch import aligned_bytes, i64
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.reduction.layout import ReductionLayout, layout_of
from lowdnn.engines.reduction.stages import Combination, operator_of
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.graph.reduction_pattern import AnyReduction, FusedReduction, match_reduction
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, WorkspacePointer

_NONE = "NoOperator"


@dataclass(frozen=True)
class ReductionSlices:
    """Partial totals that a kernel leaves for each column, for each row, and for everything."""

    columns: int = 0
    rows: int = 0
    whole: int = 0

    @classmethod
    def together(cls, slices: Iterable[ReductionSlices]) -> ReductionSlices:
        """The slices of several kernels, in their order."""
        counts = zip(*((each.columns, each.rows, each.whole) for each in slices), strict=True)
        return cls(*map(sum, counts))


@dataclass(frozen=True)
class EpilogueReductions:
    """Reductions of one tensor of the epilogue; by default none.

    column: one result for each column, over the rows.  row: one result for each row.  whole: one result.
    """

    column: FusedReduction | None = None
    row: FusedReduction | None = None
    whole: FusedReduction | None = None

    @classmethod
    def of(cls, reductions: Sequence[AnyReduction], dag: PointwiseDag, output: OutputSpace) -> EpilogueReductions | str:
        """The fields for ``reductions`` after ``dag``, or why the kernels do not compute them."""
        if reductions and 0 in dag.dims:
            return f"{type(reductions[0]).__name__}.x.dims: expected no extent of 0, got {list(dag.dims)}"
        found: dict[str, FusedReduction] = {}
        for operation in reductions:
            fused = _alone(operation)
            name = type(operation).__name__
            if fused.compute_type is not DataType.FLOAT:
                return f"{name}.compute_type: expected FLOAT, got {fused.compute_type.name}"
            kind = _kind(layout_of(fused), dag, output)
            if not kind:
                return (
                    f"{name}: expected one result, or one for each of the output's columns or rows in the order of "
                    f"memory, got axes {sorted(set(range(len(dag.dims))) - set(operation.axes))}"
                )
            if kind in found:
                return f"operations: expected one reduction each of columns, rows and everything, got two: {kind}"
            found[kind] = fused
        return cls(**found)

    @property
    def exist(self) -> bool:
        return bool(self.column or self.row or self.whole)

    @property
    def reduced(self) -> Tensor | None:
        """The tensor that all of them reduce."""
        return next((fused.operation.x for fused in self._all if fused), None)

    @property
    def macros(self) -> tuple[tuple[str, int | str], ...]:
        """The kernel's macros for the reductions."""
        operators = (operator_of(fused.operation) if fused else _NONE for fused in self._all)
        return tuple(zip(("COLUMN_OPERATOR", "ROW_OPERATOR", "WHOLE_OPERATOR"), operators, strict=True))

    @property
    def label(self) -> str:
        """The reductions' part of kernel names; empty if there are none."""
        kinds = zip(("columns", "rows", "whole"), self._all, strict=True)
        return "".join(f"_{kind}_{operator_of(fused.operation).lower()}" for kind, fused in kinds if fused)

    def totals_bytes(self, slices: ReductionSlices) -> int:
        return sum(combination.partials_bytes for combination in self._combinations(slices))

    def reserve(self, parts: PlanParts, slices: ReductionSlices) -> tuple[WorkspacePointer, ...]:
        """Reserves the workspace of the partial totals."""
        sizes = (aligned_bytes(combination.partials_bytes) for combination in self._combinations(slices))
        return tuple(WorkspacePointer(parts.reserve(size)) for size in sizes)

    def arguments(
        self, totals: Sequence[WorkspacePointer], before: ReductionSlices = ReductionSlices()
    ) -> tuple[Argument, ...]:
        """The fields of ``Output`` for the reductions that exist.  before: the totals that earlier kernels leave."""
        fields: list[Argument] = []
        for combination, pointer in zip(self._combinations(before), totals, strict=True):
            fields.append(replace(pointer, offset_bytes=pointer.offset_bytes + combination.partials_bytes))
            if combination.fused is not self.whole:
                fields += i64((combination.layout.outputs,))
        return tuple(fields)

    def combine(
        self, parts: PlanParts, slices: ReductionSlices, totals: Sequence[WorkspacePointer], *, overlaps: bool
    ) -> None:
        """Adds launches that combine the ``totals``.  overlaps: as dependent launches, on sm_90a."""
        for combination, partials in zip(self._combinations(slices), totals, strict=True):
            launched = replace(combination, overlaps=overlaps)
            parts.launches.append(launched.launch(parts.kernel(launched.kernel()), partials))

    @property
    def _all(self) -> tuple[FusedReduction | None, ...]:
        """The three reductions in the order of the kernels' parameters."""
        return self.column, self.row, self.whole

    def _combinations(self, slices: ReductionSlices) -> Iterator[Combination]:
        for fused, count in zip(self._all, (slices.columns, slices.rows, slices.whole), strict=True):
            if fused:
                yield Combination(fused, layout_of(fused), count)


#: Nothing is reduced.
NO_REDUCTIONS = EpilogueReductions()


def _alone(operation: AnyReduction) -> FusedReduction:
    """The reduction as the only operation of a graph, which reads ``x`` from memory."""
    stored = replace(operation, x=replace(operation.x, is_virtual=False))
    found = match_reduction(OperationGraph([stored]))
    assert isinstance(found, FusedReduction), found
    return found


def _kind(layout: ReductionLayout, dag: PointwiseDag, output: OutputSpace) -> str:
    """The field of EpilogueReductions that a reduction fills, by its kept axes; empty if it fits none."""
    kept = _axes(layout.space.origin[: layout.kept], dag)
    places = (("column", output.space.origin[output.row_axes :]), ("row", output.space.origin[: output.row_axes]))
    if not kept:
        return "whole"
    for kind, origin in places:
        extents = output.columns if kind == "column" else output.rows
        if kept == _axes(origin, dag) and prod(dag.dims[axis] for axis in kept) == extents:
            return kind
    return ""


def _axes(origin: Iterable[Iterable[int]], dag: PointwiseDag) -> list[int]:
    """The DAG's axes in their order, except axes of extent 1."""
    return [axis for axes in origin for axis in axes if dag.dims[axis] > 1]
