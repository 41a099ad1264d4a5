"""The axes of reduction kernels, the generated functors, and the amount of work along each axis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from lowdnn.codegen.functor import Functor, generate
from lowdnn.codegen.space import IndexSpace, collapsed, strides_over, with_axis
from lowdnn.engines.launch import bytes_touched, ceil_div, ceil_power
from lowdnn.enums import PointwiseMode
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.graph.reduction_pattern import FusedReduction
from lowdnn.plan import Struct

#: Accumulators of a thread at most; more would cost occupancy.
MAX_VECTOR = 8

#: The name of the functor before the reduction.
PROLOGUE = "Prologue"
#: The names of the functors after the reduction, one for each of its results.
_EPILOGUES = ("Epilogue", "SquaresEpilogue")


@dataclass(frozen=True)
class ReductionAxes:
    """The axes of reduction kernels: first ``kept`` kept axes, then the reduced ones; at least one of each.

    is_row: whether the vector axis is the last reduced axis; otherwise it is the last kept axis.
    vector: elements of a group along the vector axis.
    """

    space: IndexSpace
    kept: int
    is_row: bool
    vector: int

    @property
    def vector_axis(self) -> int:
        return self.space.rank - 1 if self.is_row else self.kept - 1

    @cached_property
    def outputs(self) -> int:
        return prod(self.space.extents[: self.kept])

    @cached_property
    def extent(self) -> int:
        """Elements along the vector axis."""
        return self.space.extents[self.vector_axis]

    @cached_property
    def radices(self) -> tuple[int, ...]:
        """Extents, with the vector axis in groups."""
        axis = self.vector_axis
        groups = ceil_div(self.extent, self.vector)
        return (*self.space.extents[:axis], groups, *self.space.extents[axis + 1 :])

    @cached_property
    def reduced_groups(self) -> int:
        """Groups that are reduced into one output."""
        return prod(self.radices[self.kept :])


@dataclass(frozen=True)
class ReductionLayout(ReductionAxes):
    """The axes, with the generated functors before and after the reduction; ``GenStats`` has two after it."""

    before: Functor
    after: tuple[Functor, ...]

    @property
    def after_arguments(self) -> tuple[Struct, ...]:
        return tuple(functor.arguments for functor in self.after)

    @cached_property
    def count(self) -> int:
        """Elements reduced into one output."""
        return prod(self.space.extents[self.kept :])

    @cached_property
    def kept_groups(self) -> int:
        return prod(self.radices[: self.kept])

    @cached_property
    def whole_groups(self) -> int:
        """Leading reduced groups with ``vector`` elements each, if the vector axis is reduced."""
        if self.extent % self.vector == 0:
            return self.reduced_groups
        return self.extent // self.vector if self.space.rank - self.kept == 1 else 0


def layout_of(fused: FusedReduction) -> ReductionLayout:
    """The layout that reads the largest tensor before the reduction along its memory."""
    space = _ordered(fused)
    reduced = set(fused.operation.axes)
    is_kept = [not set(origin) & reduced for origin in space.origin]
    is_row = bool(is_kept) and not is_kept[-1]
    order = sorted(range(space.rank), key=lambda axis: not is_kept[axis])
    space, kept = space.permuted(tuple(order)), sum(is_kept)
    if kept == 0:
        space, kept = with_axis(space, 0), 1
    if kept == space.rank:
        space = with_axis(space, space.rank)
    vector_axis = space.rank - 1 if is_row else kept - 1
    compute_type = fused.compute_type
    before = generate(
        fused.before, accumulator=None, vector_axis=vector_axis, result=compute_type, space=space, name=PROLOGUE
    )
    kept_space = space.permuted(tuple(range(kept)))
    after = tuple(
        generate(dag, accumulator=compute_type, vector_axis=kept - 1, space=kept_space, name=name)
        for name, dag in zip(_EPILOGUES, fused.after, strict=False)
    )
    vector = min(before.vector, MAX_VECTOR // len(after), ceil_power(space.extents[vector_axis]))
    return ReductionLayout(space, kept, is_row, vector, before, after)


def _ordered(fused: FusedReduction) -> IndexSpace:
    """The axes of x by falling strides of the largest load, merged if all tensors allow."""
    before = fused.before
    loads = sorted(before.loads, key=lambda tensor: -bytes_touched(tensor))
    tensors = {t.uid: strides_over(t, before.dims) for t in (*loads, *before.stores)}
    later = {t.uid: strides_over(t, after.dims) for after in fused.after for t in (*after.loads, *after.stores)}
    axes = tuple((axis,) for axis in range(len(before.dims)))
    space = IndexSpace(before.dims, tensors | later, axes)
    order = sorted(range(space.rank), key=lambda axis: tuple(-row[axis] for row in space.strides.values()))
    indexed = frozenset().union(*(indexed_axes(dag) for dag in (before, *fused.after)))
    return collapsed(space.permuted(tuple(order)), alone=indexed, separate=fused.operation.axes)


def indexed_axes(dag: PointwiseDag) -> set[int]:
    """The axes along which a GEN_INDEX needs the coordinate."""
    return {op.pointwise.axis for op in dag.operations if op.mode is PointwiseMode.GEN_INDEX}
