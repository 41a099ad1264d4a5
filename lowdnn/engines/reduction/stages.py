"""The kernels and launches of a reduction: one, or two that pass partial totals through the workspace."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from lowdnn import dtypes
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.engines.indices import counter_type
from lowdnn.engines.launch import (
    MAX_EXTENT,
    ceil_div,
    ceil_power,
    divider,
    fma_unit,
    i64,
    macros,
    moved_bytes,
    target_label,
    target_of_form,
)
from lowdnn.engines.reduction.layout import ReductionLayout
from lowdnn.enums import DataType, ReduceTensorOp
from lowdnn.graph.reduction_pattern import AnyReduction, FusedReduction
from lowdnn.ops.gen_stats import GenStats
from lowdnn.plan import (
    Argument,
    KernelRef,
    Launch,
    MathUnit,
    Struct,
    Work,
    WorkspacePointer,
)

#: Threads of a block.
THREADS = 256
#: Blocks per multiprocessor that keep device memory busy.
BLOCKS_PER_SM = 4

#: Slices of an output from which fewer outputs lie side by side in the second launch.
_FEW_SLICES = 16
#: Slices from which 32 threads for each output would wait for memory more than twice in sequence.
_MANY_SLICES = 256
#: Iterations of a block in a long slice at least.
_LONG_SLICE = 4
_OPERATORS = {
    ReduceTensorOp.ADD: "Add",
    ReduceTensorOp.MUL: "Mul",
    ReduceTensorOp.MIN: "Min",
    ReduceTensorOp.MAX: "Max",
    ReduceTensorOp.AMAX: "Amax",
    ReduceTensorOp.AVG: "Avg",
    ReduceTensorOp.NORM1: "Norm1",
    ReduceTensorOp.NORM2: "Norm2",
    ReduceTensorOp.MUL_NO_ZEROS: "MulNoZeros",
}


@dataclass(frozen=True)
class RowParams:
    """Compile-time parameters of ``reduction_rows.cu``; field names are its macros."""

    OPERATOR: str
    THREADS: int
    TEAM: int
    UNROLL: int
    VECTOR: int
    KEPT: int
    SPLIT: int
    MOMENTS: int
    INDEX: str


@dataclass(frozen=True)
class ColumnParams:
    """Compile-time parameters of ``reduction_columns.cu``; field names are its macros."""

    OPERATOR: str
    THREADS: int
    COLUMNS: int
    UNROLL: int
    VECTOR: int
    KEPT: int
    SPLIT: int
    MOMENTS: int
    INDEX: str


@dataclass(frozen=True)
class ShortParams:
    """Compile-time parameters of ``reduction_short_rows.cu``; field names are its macros."""

    OPERATOR: str
    COMPUTE: str
    THREADS: int
    TEAM: int
    UNROLL: int
    VECTOR: int
    STAGED: int
    MOMENTS: int


@dataclass(frozen=True)
class CombineParams:
    """Compile-time parameters of ``reduction_combine.cu``; field names are its macros."""

    OPERATOR: str
    THREADS: int
    COLUMNS: int
    MOMENTS: int
    OVERLAPS: int
    INDEX: str


Params = RowParams | ColumnParams | ShortParams | CombineParams


@dataclass(frozen=True)
class Stages:
    """The choices for one fused reduction.

    width: threads of a team (rows), or threads side by side (columns).  unroll: groups in flight for each thread.
    wanted_slices: slices that an output is cut into; there are fewer if it has fewer groups.
    overlaps: as ``Combination.overlaps``.
    """

    fused: FusedReduction
    layout: ReductionLayout
    width: int
    unroll: int
    wanted_slices: int
    overlaps: bool

    @cached_property
    def slice_groups(self) -> int:
        """Groups of a slice; in long slices a multiple of the groups that a block has in flight, without a
        remainder."""
        groups = ceil_div(max(self.layout.reduced_groups, 1), self.wanted_slices)
        at_once = threads_per_output(self.layout, self.width) * self.unroll
        is_long = self.wanted_slices > 1 and groups >= _LONG_SLICE * at_once
        return ceil_div(groups, at_once) * at_once if is_long else groups

    @cached_property
    def slices(self) -> int:
        return max(1, ceil_div(self.layout.reduced_groups, self.slice_groups))

    @property
    def is_split(self) -> bool:
        return self.slices > 1

    @property
    def blocks(self) -> int:
        """Blocks of the first launch."""
        return blocks_of_slice(self.layout, self.width) * self.slices

    @property
    def partials_bytes(self) -> int:
        """Bytes of the workspace."""
        return self._combination.partials_bytes if self.is_split else 0

    def kernels(self) -> tuple[KernelRef, ...]:
        return (self._first_kernel(), self._combination.kernel()) if self.is_split else (self._first_kernel(),)

    def launches(self) -> tuple[Launch, ...]:
        first = self._first_launch()
        return (first, self._combination.launch(1, WorkspacePointer())) if self.is_split else (first,)

    def _first_kernel(self) -> KernelRef:
        layout = self.layout
        shape = (
            THREADS,
            self.width,
            self.unroll,
            layout.vector,
            layout.kept,
            int(self.is_split),
            self._moments,
            self._index,
        )
        params = RowParams(self._operator, *shape) if layout.is_row else ColumnParams(self._operator, *shape)
        functors = (layout.before,) if self.is_split else (layout.before, *layout.after)
        name = f"w{self.width}u{self.unroll}v{layout.vector}k{layout.kept}_{self._index}"
        stage = ("rows" if layout.is_row else "columns") + ("_split" if self.is_split else "")
        return kernel_ref(stage, self._data_type, name, params, tuple((f.text, f.digest) for f in functors))

    def _first_launch(self) -> Launch:
        layout = self.layout
        reduced = (layout.reduced_groups, layout.whole_groups, layout.extent)
        kept = (layout.kept_groups, layout.extent, layout.reduced_groups)
        sizes = (layout.outputs, *(reduced if layout.is_row else kept), self.slice_groups, self.slices, layout.count)
        last = (WorkspacePointer(),) if self.is_split else layout.after_arguments
        operations = len(self.fused.before.operations) + 1
        return Launch(
            kernel=0,
            grid=(self.blocks, 1, 1),
            block=(THREADS, 1, 1),
            arguments=(Struct((*i64(sizes), *axes_of(layout.radices), layout.before.arguments, *last)),),
            work=Work(
                flops=prod(self.fused.before.dims) * operations,
                bytes=moved_bytes(self.fused.before) + (self.partials_bytes or self._after_bytes),
                unit=self._unit,
            ),
        )

    @property
    def _combination(self) -> Combination:
        return Combination(self.fused, self.layout, self.slices, self.overlaps)

    @property
    def _operator(self) -> str:
        return operator_of(self.fused.operation)

    @property
    def _moments(self) -> int:
        return moments_of(self.fused)

    @property
    def _data_type(self) -> DataType:
        return self.fused.operation.x.data_type

    @property
    def _after_bytes(self) -> int:
        return sum(moved_bytes(dag) for dag in self.fused.after)

    @property
    def _index(self) -> str:
        return _index(self.layout)

    @property
    def _unit(self) -> MathUnit:
        return fma_unit(self.fused.compute_type)


@dataclass(frozen=True)
class Combination:
    """The launch that combines ``slices`` partial totals of each output, [slices][outputs], and finishes them.

    overlaps: whether it is a dependent launch, which sm_90a has: it may begin before the launch that writes them ends.
    """

    fused: FusedReduction
    layout: ReductionLayout
    slices: int
    overlaps: bool = False

    @property
    def partials_bytes(self) -> int:
        total_bytes = dtypes.info(self.fused.compute_type).size_bytes * len(self.layout.after)
        return self.slices * self.layout.outputs * total_bytes

    def kernel(self) -> KernelRef:
        fused, layout = self.fused, self.layout
        params = CombineParams(
            operator_of(fused.operation), THREADS, self._width, moments_of(fused), int(self.overlaps), _index(layout)
        )
        functors = tuple((f.text, f.digest) for f in layout.after)
        target = target_of_form(is_newer=self.overlaps)
        shape = f"w{self._width}_{_index(layout)}"
        return kernel_ref("combine", fused.operation.x.data_type, shape, params, functors, target)

    def launch(self, kernel: int, partials: WorkspacePointer) -> Launch:
        layout = self.layout
        sizes = i64((layout.outputs, self.slices, layout.count))
        axes = axes_of(layout.space.extents[: layout.kept])
        stored_bytes = sum(moved_bytes(dag) for dag in self.fused.after)
        return Launch(
            kernel,
            grid=(ceil_div(layout.outputs, self._width), 1, 1),
            block=(THREADS, 1, 1),
            arguments=(Struct((*sizes, *axes, partials, *layout.after_arguments)),),
            work=Work(
                flops=layout.outputs * self.slices,
                bytes=self.partials_bytes + stored_bytes,
                unit=fma_unit(self.fused.compute_type),
            ),
            overlaps_previous=self.overlaps,
        )

    @property
    def _width(self) -> int:
        """Outputs side by side in a block: a warp's, or less than a memory sector's if there are many slices."""
        width = 32 if self.slices < _FEW_SLICES else 8 if self.slices < _MANY_SLICES else 2
        return min(width, ceil_power(self.layout.outputs))


def operator_of(operation: AnyReduction) -> str:
    """The operator's struct in ``include/math/reduction_operators.cuh``."""
    return "GenStats" if isinstance(operation, GenStats) else _OPERATORS[operation.reduction.operator]


def threads_per_output(layout: ReductionLayout, width: int) -> int:
    """Threads of a block that share an output, or a group of outputs."""
    return width if layout.is_row else THREADS // width


def blocks_of_slice(layout: ReductionLayout, width: int) -> int:
    """Blocks for one slice of every output."""
    if layout.is_row:
        return ceil_div(layout.outputs, THREADS // width)
    return ceil_div(layout.kept_groups, width)


def moments_of(fused: FusedReduction) -> int:
    return int(isinstance(fused.operation, GenStats))


def kernel_ref(
    stage: str,
    data_type: DataType,
    shape: str,
    params: Params,
    functors: tuple[tuple[str, str], ...],
    target: str = BASE_TARGET,
) -> KernelRef:
    digests = "_".join(digest for _, digest in functors)
    short = dtypes.info(data_type).short_name
    operator = params.OPERATOR.lower()
    source = f"reduction/reduction_{stage.removesuffix('_split')}.cu"
    return KernelRef(
        name=f"reduction_{stage}_{short}_{operator}_{shape}_{target_label(target)}_{digests}",
        source=source,
        target=target,
        parameters=macros(params),
        generated="\n".join(text for text, _ in functors),
    )


def _index(layout: ReductionLayout) -> str:
    return counter_type(max(layout.outputs, layout.kept_groups, layout.reduced_groups))


def axes_of(radices: tuple[int, ...]) -> tuple[Argument, ...]:
    """The kernels' ``Divider axes[]``. They do not use the first of each mixed radix, nor any if there is no work."""
    return tuple(field for radix in radices for field in divider(min(max(radix, 1), MAX_EXTENT)))
