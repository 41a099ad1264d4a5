"""The output of an mma.sync engine: its index space as rows and columns of a product, its functor, its reduction.

Host side of ``include/epilogue/output_map.cuh`` and ``gemm/split_k_reduce.cu``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd, prod

from lowdnn.codegen.functor import Functor, generate
from lowdnn.codegen.space import IndexSpace, collapsed, space_of, with_axis
from lowdnn.engines.gemm.instructions import MMA_ACCUMULATORS
from lowdnn.engines.launch import (
    aligned_bytes,
    ceil_div,
    divider,
    floor_power,
    i32,
    i64,
    macros,
    target_label,
    target_of_form,
)
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, Work, WorkspacePointer

#: Elements of a functor call at most: 16 bytes of a 16-bit output.
MAX_VECTOR = 8
#: Elements of a functor call in the slice sum at most: 16 bytes of accumulators.
_MAX_REDUCE_VECTOR = 4

_REDUCE_THREADS = 256
_MAX_LANES = 32
#: Slices that a lane of the slice sum adds up at least.
_MIN_LANE_SPLITS = 2
#: Items times lanes of the slice sum beyond which more lanes do not pay, as the device is busy.
_MAX_REDUCE_ITEMS = 1 << 18


@dataclass(frozen=True)
class OutputSpace:
    """An index space whose first ``row_axes`` axes are the rows of a product, the others its columns."""

    space: IndexSpace
    row_axes: int

    @property
    def row_extents(self) -> tuple[int, ...]:
        return self.space.extents[: self.row_axes]

    @property
    def rows(self) -> int:
        return prod(self.row_extents)

    @property
    def columns(self) -> int:
        return prod(self.space.extents[self.row_axes :])

    @property
    def map(self) -> Struct:
        """The kernel's ``OutputMap``."""
        return Struct(tuple(Struct(divider(max(extent, 1))) for extent in self.space.extents))

    def vector(self, functor: Functor) -> int:
        """Elements of a functor call: at most the functor's width, and none past the end of the last axis.

        Where there are several column axes or groups of columns, a call must end with the last axis.
        """
        width = min(functor.vector, MAX_VECTOR)
        if self.space.rank - self.row_axes > 1:
            while self.space.extents[-1] % width:
                width //= 2
        return width


def output_space(
    dag: PointwiseDag,
    row_axes: tuple[int, ...],
    column_axes: tuple[int, ...],
    kept: tuple[int, ...],
    operands: Mapping[int, tuple[int, ...]],
) -> OutputSpace:
    """The DAG's axes as rows and columns, neighbouring axes merged where every tensor and every operand allows it.

    kept: axes that merge with none.  operands: strides of the product's operands over the DAG's axes, under negative
    keys; they are carried along in ``OutputSpace.space.strides``.
    """
    own = space_of(dag)
    joined = replace(own, strides={**own.strides, **operands}).permuted((*row_axes, *column_axes))
    space = collapsed(joined, alone={*kept, *_indexed_axes(dag)}, separate=row_axes)
    row_count = sum(axes[0] in row_axes for axes in space.origin)
    if row_count == 0:
        space, row_count = with_axis(space, 0), 1
    if row_count == space.rank:
        space = with_axis(space, space.rank)
    return OutputSpace(space, row_count)


def functor_of(dag: PointwiseDag, data_type: DataType, output: OutputSpace, reduced: Tensor | None = None) -> Functor:
    """The epilogue's functor for operands of ``data_type``.  reduced: the tensor that it hands back to be reduced."""
    return generate(
        replace(dag, result=None),
        accumulator=MMA_ACCUMULATORS[data_type],
        vector_axis=output.space.rank - 1,
        reduced=reduced,
        space=output.space,
    )


def full_loads(dag: PointwiseDag, output: OutputSpace) -> tuple[Tensor, ...]:
    """The tensors of the output's size that the epilogue loads: one element for every row and column."""

    def is_full(tensor: Tensor) -> bool:
        strides = output.space.strides[tensor.uid]
        return all(stride or extent == 1 for stride, extent in zip(strides, output.space.extents, strict=True))

    return tuple(filter(is_full, dag.loads))


def contiguous_stores(dag: PointwiseDag, axis: int) -> int:
    """The number of stored tensors that are contiguous along ``axis``."""
    return sum(tensor.strides[axis] == 1 and tensor.dims[axis] > 1 for tensor in dag.stores)


@dataclass(frozen=True)
class Slices:
    """The partial sums of a split product: ``splits`` slices of rows x pitch accumulators in the workspace.

    part_splits: the numbers of slices of column parts of equal width, where not all columns have ``splits``.
    """

    splits: int
    rows: int
    columns: int
    accumulator_bytes: int = 4
    part_splits: tuple[int, ...] = ()

    @property
    def pitch(self) -> int:
        """Elements of a row, rounded up to whole vectors of the slice sum."""
        return ceil_div(self.columns, MAX_VECTOR) * MAX_VECTOR

    @property
    def slice_elements(self) -> int:
        return self.rows * self.pitch

    @property
    def size_bytes(self) -> int:
        return aligned_bytes(self.splits * self.slice_elements * self.accumulator_bytes)

    @property
    def summed_elements(self) -> int:
        """Elements of all slices that exist."""
        if not self.part_splits:
            return self.splits * self.slice_elements
        return self.slice_elements * sum(self.part_splits) // len(self.part_splits)

    def vector(self, most: int) -> int:
        """Columns that the slice sum takes at once, at most ``most``: a divisor of the columns, so that rows end with a
        vector.
        """
        return gcd(min(most, _MAX_REDUCE_VECTOR), self.columns)


@dataclass(frozen=True)
class ReduceParams:
    """Macros of ``gemm/split_k_reduce.cu``."""

    OUTPUT_RANK: int
    ROW_AXES: int
    VECTOR: int
    LANES: int
    PARTS: int


def add_slice_sum(
    parts: PlanParts,
    output: OutputSpace,
    functor: Functor,
    vector: int,
    slices: Slices,
    offset_bytes: int,
    stored_bytes: int,
    *,
    overlaps: bool = False,
) -> None:
    """Adds a launch that sums the slices at ``offset_bytes`` of the workspace and applies the epilogue.

    overlaps: as a dependent launch, on sm_90a.
    """
    kernel = parts.kernel(reduction_kernel(output, functor, vector, slices, overlaps=overlaps))
    launch = reduction_launch(kernel, output, functor, vector, slices, offset_bytes, stored_bytes, overlaps=overlaps)
    parts.launches.append(launch)


def reduction_kernel(
    output: OutputSpace, functor: Functor, vector: int, slices: Slices, *, overlaps: bool = False
) -> KernelRef:
    """The kernel that sums slices.  vector: the unsplit product's; the slice sum takes at most what its slices allow.

    overlaps: for a dependent launch, on sm_90a.
    """
    vector = slices.vector(vector)
    lanes = _reduction_lanes(slices, vector)
    target = target_of_form(is_newer=overlaps)
    parts = len(slices.part_splits)
    label = f"_p{parts}" if parts else ""
    ending = f"v{vector}_l{lanes}{label}_{target_label(target)}_{functor.digest}"
    return KernelRef(
        name=f"gemm_split_k_reduce_{output.row_axes}of{output.space.rank}_{ending}",
        source="gemm/split_k_reduce.cu",
        target=target,
        parameters=macros(ReduceParams(output.space.rank, output.row_axes, vector, lanes, parts)),
        generated=functor.text,
    )


def reduction_launch(
    kernel: int,
    output: OutputSpace,
    functor: Functor,
    vector: int,
    slices: Slices,
    offset_bytes: int,
    stored_bytes: int,
    *,
    overlaps: bool = False,
) -> Launch:
    """The launch that sums the slices at ``offset_bytes`` of the workspace and applies the epilogue."""
    vector = slices.vector(vector)
    groups = slices.columns // vector
    items = _REDUCE_THREADS // _reduction_lanes(slices, vector)
    part_splits = slices.part_splits
    part_columns = (Struct(divider(slices.columns // len(part_splits))),) if part_splits else ()
    arguments = Struct(
        (
            WorkspacePointer(offset_bytes),
            *i64((slices.pitch, slices.slice_elements)),
            *i32((slices.splits, slices.rows)),
            Struct(divider(groups)),
            *part_columns,
            *i32(part_splits),
            output.map,
            functor.arguments,
        )
    )
    work = Work(
        flops=slices.summed_elements,
        bytes=slices.summed_elements * slices.accumulator_bytes + stored_bytes,
        unit=MathUnit.FMA_F32,
    )
    blocks = ceil_div(slices.rows * groups, items)
    grid, block = (blocks, 1, 1), (_REDUCE_THREADS, 1, 1)
    return Launch(kernel, grid, block, (arguments,), work=work, overlaps_previous=overlaps)


def _reduction_lanes(slices: Slices, vector: int) -> int:
    """Threads that share the slices of one item: several if there are many slices of few items."""
    items = slices.rows * slices.columns // vector
    wanted = min(slices.splits // _MIN_LANE_SPLITS, _MAX_REDUCE_ITEMS // max(items, 1), _MAX_LANES)
    return floor_power(wanted)


def _indexed_axes(dag: PointwiseDag) -> frozenset[int]:
    """Axes whose index is a value in the DAG."""
    return frozenset(op.pointwise.axis for op in dag.operations if op.mode is PointwiseMode.GEN_INDEX)
