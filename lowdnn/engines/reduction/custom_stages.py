"""The kernels and launches of a custom reduction, and the axes that they run over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from lowdnn import dtypes
from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.codegen.functor import Functor, digest_of, generate
from lowdnn.codegen.reducer import arguments_of, generate_reducer, results_text, state_bytes, streams_text
from lowdnn.codegen.space import IndexSpace, collapsed, strides_over, with_axis
from lowdnn.engines.indices import counter_type
from lowdnn.engines.launch import (
    aligned_bytes,
    bytes_touched,
    ceil_div,
    ceil_power,
    floor_power,
    fma_unit,
    i64,
    macros,
    moved_bytes,
    target_label,
)
from lowdnn.engines.reduction.layout import ReductionAxes, indexed_axes
from lowdnn.engines.reduction.stages import THREADS, axes_of
from lowdnn.graph.custom_reduction_pattern import FusedCustomReduction
from lowdnn.plan import Argument, KernelRef, Launch, Struct, Work, WorkspacePointer

#: Elements of a group at most.
_MAX_VECTOR = 4


@dataclass(frozen=True)
class CustomLayout(ReductionAxes):
    """The axes, reduced ones in the order of x, with the generated functors for each x and for each y."""

    before: tuple[Functor, ...]
    after: tuple[Functor, ...]

    @property
    def side_by_side(self) -> int:
        """Outputs along the last kept axis."""
        return ceil_power(self.space.extents[self.kept - 1])


def layout_of(fused: FusedCustomReduction) -> CustomLayout:
    """The layout that reads the largest tensor before the reduction along its memory, as far as the order of elements
    allows."""
    space = _ordered(fused)
    reduced = set(fused.operation.axes)
    kept = sum(not set(origin) & reduced for origin in space.origin)
    if kept == 0:
        space, kept = with_axis(space, 0), 1
    if kept == space.rank:
        space = with_axis(space, space.rank)
    loads = [tensor for dag in fused.before for tensor in dag.loads]
    along = [row for tensor in sorted(loads, key=bytes_touched) if any(row := space.strides[tensor.uid])]
    is_row = bool(along) and along[-1][-1] == 1
    vector_axis = space.rank - 1 if is_row else kept - 1
    kinds = fused.operation.compute_types
    before = tuple(
        generate(dag, accumulator=None, vector_axis=vector_axis, result=kind, space=space, name=f"Stream{i}")
        for i, (dag, kind) in enumerate(zip(fused.before, kinds, strict=True))
    )
    kept_space = space.permuted(tuple(range(kept)))
    after = tuple(
        generate(dag, accumulator=kind, vector_axis=kept - 1, space=kept_space, name=f"Result{i}")
        for i, (dag, kind) in enumerate(zip(fused.after, kinds, strict=True))
    )
    widest = min(_MAX_VECTOR, *(functor.vector for functor in before), ceil_power(space.extents[vector_axis]))
    return CustomLayout(space, kept, is_row, widest if is_row else 1, before, after)


def _ordered(fused: FusedCustomReduction) -> IndexSpace:
    """The kept axes by falling strides of the largest load, then the reduced axes, merged if all tensors allow."""
    dims, reduced = fused.operation.x[0].dims, fused.operation.axes
    dags = (*fused.before, *fused.after)
    loads = sorted((t for dag in fused.before for t in dag.loads), key=lambda tensor: -bytes_touched(tensor))
    tensors = {t.uid: t for t in (*loads, *(t for dag in dags for t in (*dag.loads, *dag.stores)))}
    rows = {uid: strides_over(tensor, dims) for uid, tensor in tensors.items()}
    space = IndexSpace(dims, rows, tuple((axis,) for axis in range(len(dims))))
    kept = [axis for axis in range(len(dims)) if axis not in reduced]
    kept.sort(key=lambda axis: tuple(-row[axis] for row in rows.values()))
    indexed = frozenset().union(*(indexed_axes(dag) for dag in dags))
    return collapsed(space.permuted((*kept, *reduced)), alone=indexed, separate=reduced)


@dataclass(frozen=True)
class Params:
    """Compile-time parameters of ``custom_reduction.cu``; field names are its macros."""

    THREADS: int
    LANES: int
    PARTS: int
    UNROLL: int
    VECTOR: int
    KEPT: int
    ROWS: int
    SPLIT: int
    INDEX: str


@dataclass(frozen=True)
class CombineParams:
    """Compile-time parameters of ``custom_reduction_combine.cu``; field names are its macros."""

    THREADS: int
    PARTS: int
    INDEX: str


@dataclass(frozen=True)
class CustomStages:
    """The choices for one custom reduction.

    width: threads of an output.  unroll: groups in flight for each thread.  wanted_slices: slices that an output is cut
    into; there are fewer if it has fewer groups.
    """

    fused: FusedCustomReduction
    layout: CustomLayout
    width: int
    unroll: int
    wanted_slices: int

    def steps(self) -> Iterator[tuple[KernelRef, Launch]]:
        """Each kernel with its launch, in order."""
        yield self._first_kernel(), self._first_launch()
        if self._slices > 1:
            yield self._second_kernel(), self._second_launch()

    @property
    def partials_bytes(self) -> int:
        """Bytes of the workspace."""
        size = state_bytes(self.fused.operation.compute_types)
        return aligned_bytes(self._slices * self.layout.outputs * size) if self._slices > 1 else 0

    @property
    def _lanes(self) -> int:
        return min(self.width, WARP_SIZE) if self.layout.is_row else 1

    @cached_property
    def _slice_groups(self) -> int:
        return max(1, ceil_div(self.layout.reduced_groups, self.wanted_slices))

    @cached_property
    def _slices(self) -> int:
        return max(1, ceil_div(self.layout.reduced_groups, self._slice_groups))

    @property
    def _combining_parts(self) -> int:
        """Threads of an output in the second launch."""
        return min(floor_power(self._slices), THREADS // min(WARP_SIZE, ceil_power(self.layout.outputs)))

    @cached_property
    def _reducer(self) -> tuple[str, Struct]:
        found = generate_reducer(self.fused.operation)
        return found.text, found.arguments

    @cached_property
    def _results(self) -> str:
        kinds = self.fused.operation.compute_types
        return _concatenated(self.layout.after, results_text(kinds, [f"Result{i}" for i in range(len(kinds))]))

    def _first_kernel(self) -> KernelRef:
        layout, kinds = self.layout, self.fused.operation.compute_types
        lanes, parts, index = self._lanes, self.width // self._lanes, self._index
        flags = (layout.kept, int(layout.is_row), int(self._slices > 1), index)
        params = Params(THREADS, lanes, parts, self.unroll, layout.vector, *flags)
        streams = streams_text(kinds, [f"Stream{i}" for i in range(len(kinds))])
        text = "\n".join((self._reducer[0], _concatenated(layout.before, streams), self._results))
        shape = f"l{lanes}p{parts}u{self.unroll}v{layout.vector}k{layout.kept}{'_split' * (self._slices > 1)}_{index}"
        return self._kernel("custom_reduction", shape, macros(params), text)

    def _first_launch(self) -> Launch:
        layout = self.layout
        part_groups = max(1, ceil_div(self._slice_groups, self.width // self._lanes))
        sizes = (layout.outputs, layout.reduced_groups, layout.extent, self._slice_groups, self._slices, part_groups)
        sink = Struct((WorkspacePointer(),)) if self._slices > 1 else arguments_of(layout.after)
        arguments = (*i64(sizes), *axes_of(layout.radices), self._reducer[1], arguments_of(layout.before), sink)
        moved = sum(map(moved_bytes, self.fused.before)) + (self.partials_bytes or self._stored_bytes)
        blocks = ceil_div(layout.outputs, THREADS // self.width) * self._slices
        operations = 1 + sum(len(dag.operations) for dag in self.fused.before)
        flops = self.fused.operation.flops * operations
        return self._launch(blocks, arguments, flops, moved)

    def _second_kernel(self) -> KernelRef:
        params = CombineParams(THREADS, self._combining_parts, self._index)
        text = "\n".join((self._reducer[0], self._results))
        return self._kernel("custom_reduction_combine", f"p{params.PARTS}_{params.INDEX}", macros(params), text)

    def _second_launch(self) -> Launch:
        layout, parts = self.layout, self._combining_parts
        sizes = (layout.outputs, self._slices, ceil_div(self._slices, parts))
        axes = axes_of(layout.space.extents[: layout.kept])
        results = arguments_of(layout.after)
        arguments = (*i64(sizes), *axes, self._reducer[1], WorkspacePointer(), results)
        operations = max(1, len(self.fused.operation.operator.operations))
        flops = layout.outputs * self._slices * operations
        blocks = ceil_div(layout.outputs, THREADS // parts)
        return self._launch(blocks, arguments, flops, self.partials_bytes + self._stored_bytes)

    def _kernel(
        self, stage: str, shape: str, parameters: tuple[tuple[str, int | str], ...], generated: str
    ) -> KernelRef:
        types = "_".join(dtypes.info(kind).short_name for kind in self.fused.operation.compute_types)
        name = f"{stage}_{types}_{shape}_{target_label(BASE_TARGET)}_{digest_of(generated)}"
        return KernelRef(name, f"reduction/{stage}.cu", BASE_TARGET, parameters, generated=generated)

    def _launch(self, blocks: int, arguments: tuple[Argument, ...], flops: int, moved: int) -> Launch:
        unit = fma_unit(self.fused.operation.compute_type)
        work = Work(flops=flops, bytes=moved, unit=unit)
        return Launch(0, (blocks, 1, 1), (THREADS, 1, 1), (Struct(arguments),), work=work)

    @property
    def _stored_bytes(self) -> int:
        return sum(map(moved_bytes, self.fused.after))

    @property
    def _index(self) -> str:
        return counter_type(max(self.layout.outputs, self.layout.reduced_groups))


def _concatenated(functors: Sequence[Functor], text: str) -> str:
    return "\n".join((*(functor.text for functor in functors), text))
