"""``matmul_mma``: matrix products on tensor cores with ``mma.sync``, for sm_80 and newer.

fp16 and bf16 (summed in fp32), fp32 by TF32 (inputs rounded to 10 fraction bits, summed in fp32), int8 (summed in
int32). Each operand has one of its two matrix dimensions contiguous; any batch strides, broadcasts, tails and
alignments; any pointwise epilogue. Kernel: ``matmul_mma.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A, ArchSpec
from lowdnn.codegen.functor import Functor
from lowdnn.engines.base import Choices, Knob, Refusal, plan_tensors, resolve_choices
from lowdnn.engines.gemm import tiles
from lowdnn.engines.gemm.output_space import (
    OutputSpace,
    Slices,
    contiguous_stores,
    functor_of,
    i32,
    i64,
    macros,
    output_space,
    reduction_kernel,
    reduction_launch,
)
from lowdnn.engines.gemm.tiles import Product, Tiling
from lowdnn.engines.launch import MAX_GRID_X, bytes_touched
from lowdnn.enums import BehaviorNote, DataType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import Anchored, PointwiseDag, match_anchored
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.plan import (
    KernelRef,
    Launch,
    Plan,
    Scalar,
    ScalarType,
    Struct,
    TensorPointer,
    Work,
    WorkspacePointer,
)
from lowdnn.status import NotSupportedError, Status

#: Keys of the operands' strides in the index space; uids of a graph are not negative.
_ROWS, _COLUMNS = -2, -3

#: Bytes of one row along k, and rows of all batches together, are 32-bit in the kernel.
_MAX_DEPTH_BYTES = 2**31 - 1024
_MAX_ROWS = 2**31 - 1024

#: Bytes of the largest copy.
_MAX_ALIGNMENT = 16


@dataclass(frozen=True)
class Params:
    """Macros of ``matmul_mma.cu``."""

    TYPE: str
    TILE_M: int
    TILE_N: int
    TILE_K: int
    WARPS_M: int
    WARPS_N: int
    STAGES: int
    A_K_MAJOR: int
    B_K_MAJOR: int
    A_ALIGNMENT: int
    B_ALIGNMENT: int
    OUTPUT_RANK: int
    ROW_AXES: int
    VECTOR: int
    SPLIT_K: int


class MatmulMma:
    """See the module's docstring."""

    name = "matmul_mma"
    index = 2
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.TENSOR_CORE, NumericalNote.DOWN_CONVERT_INPUTS)
    behavior_notes: tuple[BehaviorNote, ...] = (
        BehaviorNote.RUNTIME_COMPILATION,
        BehaviorNote.SUPPORTS_CUDA_GRAPH_NATIVE_API,
    )

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses data types without an mma instruction, and operands with neither matrix dimension contiguous."""
        problem = self._problem(graph)
        return problem if isinstance(problem, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M, TILE_N (of the product as the kernel sees it), TILEK, STAGES, SPLIT_K_SLC."""
        return tiles.knobs(self._accepted(graph).product, arch)

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """One launch, a second one where k is split, none where c is empty."""
        problem = self._accepted(graph)
        product = problem.product
        chosen = resolve_choices(self.name, tiles.knobs(product, arch), choices)
        tiling = tiles.tiling_of(self.name, product, arch, chosen)
        empty = 0 in problem.dag.dims
        kernels, launches = ((), ()) if empty else _kernels_and_launches(problem, tiling)
        notes = self.numerical_notes if product.data_type is DataType.FLOAT else self.numerical_notes[:1]
        return Plan(
            engine=self.name,
            engine_index=self.index,
            graph_key=graph.key,
            target_arch=arch.name,
            choices=tuple(chosen.items()),
            kernels=kernels,
            launches=launches,
            tensors=plan_tensors(graph),
            workspace_bytes=problem.slices(tiling).size_bytes if len(launches) > 1 else 0,
            numerical_notes=notes,
            behavior_notes=self.behavior_notes,
        )

    def precompiled(self) -> tuple[KernelRef, ...]:
        """Plain packed products at the large tile: row-major, and with b transposed."""
        return tuple(
            _plain_kernel(data_type, transposes_b)
            for data_type in (DataType.BFLOAT16, DataType.HALF, DataType.FLOAT)
            for transposes_b in (False, True)
        )

    def _accepted(self, graph: OperationGraph) -> _Problem:
        problem = self._problem(graph)
        if isinstance(problem, Refusal):
            raise NotSupportedError(str(problem))
        return problem

    def _problem(self, graph: OperationGraph) -> _Problem | Refusal:
        matched = match_anchored(graph, MatmulOperation)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        refused = _refuse_types(matched.anchor)
        if refused:
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_DATA_TYPE)
        problem = _Problem.of(matched)
        refused = problem.refuse_layout()
        if refused:
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_LAYOUT)
        refused = problem.refuse_extents()
        return Refusal(self.name, refused, Status.NOT_SUPPORTED_SHAPE) if refused else problem


@dataclass(frozen=True)
class _Operand:
    """One operand: strides of its row (of A) or column (of B) dimension and of k; extents that matter to them."""

    tensor: Tensor
    stride: int
    k_stride: int
    extent: int
    depth: int
    batch_strides: tuple[int, ...]

    @property
    def is_k_major(self) -> bool:
        return self.k_stride == 1 or self.depth <= 1

    @property
    def is_contiguous(self) -> bool:
        return self.is_k_major or self.stride == 1 or self.extent <= 1

    @property
    def leading_stride(self) -> int:
        return self.stride if self.is_k_major else self.k_stride

    @property
    def alignment(self) -> int:
        """The greatest power of two up to 16 bytes that the base, the contiguous extent and the other strides share."""
        contiguous, lines = (self.depth, self.extent) if self.is_k_major else (self.extent, self.depth)
        strides = (*self.batch_strides, self.leading_stride if lines > 1 else 0, contiguous)
        size = self.tensor.element_bytes
        common = self.tensor.alignment_bytes | _MAX_ALIGNMENT
        for stride in strides:
            common |= stride * size
        return common & -common


@dataclass(frozen=True)
class _Problem:
    """The product as the kernel sees it, a and b swapped where the output is contiguous along m."""

    dag: PointwiseDag
    output: OutputSpace
    rows: _Operand
    columns: _Operand
    product: Product

    @classmethod
    def of(cls, matched: Anchored[MatmulOperation]) -> _Problem:
        anchor, dag = matched.anchor, matched.epilogue
        last = len(dag.dims) - 1
        is_swapped = contiguous_stores(dag, last - 1) > contiguous_stores(dag, last)
        row_axis, column_axis = (last, last - 1) if is_swapped else (last - 1, last)
        a = (anchor.a, _strides(anchor.a)[:-2], anchor.a.strides[-2], anchor.a.strides[-1])
        b = (anchor.b, _strides(anchor.b)[:-2], anchor.b.strides[-1], anchor.b.strides[-2])
        (row_tensor, row_batch, row_stride, row_k), (column_tensor, column_batch, column_stride, column_k) = (
            (b, a) if is_swapped else (a, b)
        )
        depth = anchor.a.dims[-1]
        batch_axes = tuple(range(last - 1))
        along_rows = tuple(row_stride if axis == row_axis else 0 for axis in (last - 1, last))
        output = output_space(
            dag,
            row_axes=(*batch_axes, row_axis),
            column_axes=(column_axis,),
            kept=(column_axis,),
            operands={_ROWS: (*row_batch, *along_rows), _COLUMNS: (*column_batch, 0, 0)},
        )
        # Rows that the other operand does not repeat over are batches; the last row axis is m where it does.
        strides = output.space.strides
        has_m = output.row_axes > 0 and strides[_COLUMNS][output.row_axes - 1] == 0
        m = output.row_extents[-1] if has_m else 1
        batches = output.row_axes - has_m
        rows = _Operand(row_tensor, strides[_ROWS][batches] if has_m else 0, row_k, m, depth, strides[_ROWS][:batches])
        columns = _Operand(
            column_tensor, column_stride, column_k, dag.dims[column_axis], depth, strides[_COLUMNS][:batches]
        )
        batch_count = prod(output.row_extents[:batches])
        product = Product(
            anchor.a.data_type,
            batch_count,
            m,
            dag.dims[column_axis],
            depth,
            has_small_pieces=min(rows.alignment, columns.alignment) < _MAX_ALIGNMENT,
        )
        return cls(dag, output, rows, columns, product)

    def refuse_layout(self) -> str:
        for operand in (self.rows, self.columns):
            if not operand.is_contiguous:
                strides = list(operand.tensor.strides)
                return f"{operand.tensor.label}.strides: expected 1 along a matrix dimension, got {strides}"
        return ""

    def refuse_extents(self) -> str:
        limits = (
            ("rows of all batches", self.output.rows, _MAX_ROWS),
            ("columns", self.product.n, _MAX_ROWS),
            ("bytes along k", self.product.k * self.product.element_bytes, _MAX_DEPTH_BYTES),
            ("tiles of 64 x 64", self.product.smallest_tiles, MAX_GRID_X),
        )
        for what, got, limit in limits:
            if got > limit:
                return f"matmul.c.dims: expected at most {limit} {what}, got {got}"
        return ""

    def slices(self, tiling: Tiling) -> Slices:
        return Slices(tiling.splits, self.output.rows, self.output.columns)


def _refuse_types(anchor: MatmulOperation) -> str:
    a_type, b_type = anchor.a.data_type, anchor.b.data_type
    if a_type is not b_type:
        return f"matmul.b.data_type: expected {a_type.name} as a, got {b_type.name}"
    if a_type not in tiles.ACCUMULATORS:
        known = ", ".join(t.name for t in tiles.ACCUMULATORS)
        return f"matmul.a.data_type: expected one of {known}, got {a_type.name}"
    if anchor.matmul.compute_type is DataType.DOUBLE:
        return "matmul.compute_type: expected FLOAT, HALF or INT32, got DOUBLE"
    return ""


def _strides(tensor: Tensor) -> tuple[int, ...]:
    return tuple(0 if extent == 1 else stride for extent, stride in zip(tensor.dims, tensor.strides, strict=True))


def _kernels_and_launches(problem: _Problem, tiling: Tiling) -> tuple[tuple[KernelRef, ...], tuple[Launch, ...]]:
    functor = functor_of(problem.dag, problem.product.data_type, problem.output)
    vector = problem.output.vector(functor)
    kernel, launch = _kernel(problem, tiling, functor, vector), _launch(problem, tiling, functor)
    if tiling.splits == 1:
        return (kernel,), (launch,)
    stored = sum(map(bytes_touched, (*problem.dag.loads, *problem.dag.stores)))
    reduction = reduction_launch(1, problem.output, functor, vector, problem.slices(tiling), 0, stored)
    return (kernel, reduction_kernel(problem.output, functor, vector)), (launch, reduction)


def _kernel(problem: _Problem, tiling: Tiling, functor: Functor, vector: int) -> KernelRef:
    tile, shape, splits = tiling.tile, tiling.tile.shape, tiling.splits > 1
    rows, columns = problem.rows, problem.columns
    facts = dtypes.info(problem.product.data_type)
    params = Params(
        TYPE=facts.c_type,
        TILE_M=shape.m,
        TILE_N=shape.n,
        TILE_K=tile.k,
        WARPS_M=shape.warps_m,
        WARPS_N=shape.warps_n,
        STAGES=tile.stages,
        A_K_MAJOR=int(rows.is_k_major),
        B_K_MAJOR=int(columns.is_k_major),
        A_ALIGNMENT=rows.alignment,
        B_ALIGNMENT=columns.alignment,
        OUTPUT_RANK=problem.output.space.rank,
        ROW_AXES=problem.output.row_axes,
        VECTOR=1 if splits else vector,
        SPLIT_K=int(splits),
    )
    layout = f"{'mk'[params.A_K_MAJOR]}{params.A_ALIGNMENT}{'nk'[params.B_K_MAJOR]}{params.B_ALIGNMENT}"
    ending = "partial_sm80" if splits else f"v{vector}_sm80_{functor.digest}"
    return KernelRef(
        name=f"matmul_mma_{facts.short_name}_{tile.label}_{layout}_r{params.OUTPUT_RANK}_{ending}",
        source="matmul/matmul_mma.cu",
        target="sm_80",
        parameters=macros(params),
        generated="" if splits else functor.text,
    )


def _launch(problem: _Problem, tiling: Tiling, functor: Functor) -> Launch:
    product, output = problem.product, problem.output
    slices = problem.slices(tiling)
    splits = tiling.splits > 1
    batch_axes = len(problem.rows.batch_strides)
    unused = (0,) * (output.space.rank - batch_axes)
    arguments = Struct(
        (
            TensorPointer(problem.rows.tensor.uid),
            TensorPointer(problem.columns.tensor.uid),
            WorkspacePointer(0) if splits else Scalar(ScalarType.U64, 0),
            *i64(problem.rows.leading_stride, problem.columns.leading_stride),
            *i64(*problem.rows.batch_strides, *unused),
            *i64(*problem.columns.batch_strides, *unused),
            *i64(slices.pitch, slices.slice_elements),
            *i32(product.m, product.n, product.k),
            *i32(product.batches, tiling.rows, tiling.columns, tiling.split_tiles),
            output.map,
            *(() if splits else (functor.arguments,)),
        )
    )
    operands = bytes_touched(problem.rows.tensor) + bytes_touched(problem.columns.tensor)
    stored = sum(map(bytes_touched, (*problem.dag.loads, *problem.dag.stores)))
    work = Work(
        flops=tiling.flops(product),
        bytes=operands + (slices.size_bytes if splits else stored),
        unit=tiles.UNITS[product.data_type],
    )
    shape = tiling.tile.shape
    grid = (tiling.block_count(product), 1, 1)
    return Launch(0, grid, (shape.threads, 1, 1), (arguments,), shared_bytes=tiling.tile.shared_bytes, work=work)


def _plain_kernel(data_type: DataType, transposes_b: bool) -> KernelRef:
    """The kernel of a packed 4096^3 product of ``data_type``; its extents are run-time values."""
    dims = (1, 4096, 4096)
    a, b, c = (Tensor(uid, data_type, dims, packed_strides(dims), alignment_bytes=16) for uid in (1, 2, 3))
    if transposes_b:
        b = Tensor(2, data_type, dims, packed_strides(dims, (0, 2, 1)), alignment_bytes=16)
    graph = OperationGraph([MatmulOperation(Matmul(DataType.FLOAT), a, b, c)])
    return MatmulMma().plan(graph, SM_90A, {}).kernels[0]
