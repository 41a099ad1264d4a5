"""``matmul_mma``: matrix products on tensor cores with ``mma.sync``, for sm_80 and newer.

fp16 and bf16 (summed in fp32), fp32 by TF32 (inputs rounded to 10 fraction bits, summed in fp32), int8 (summed in
int32). Any strides, broadcasts, tails and alignments, any pointwise epilogue. Operands are read in place in either
order; operands without a contiguous dimension, and large ones with odd strides, are repacked into the workspace first.
A value of the epilogue may be reduced over its rows, over its columns, and as a whole. Convolutions that read each
pixel once are such products too, in all three directions (``pixel_matmul``).
Kernels: ``matmul_mma.cu``, ``gemm/split_k_reduce.cu``, those of ``gemm/packing.py``,
``reduction/reduction_combine.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from lowdnn.arch.specs import ArchSpec, spec_named
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.floor import Contraction, Floor, Floored, Modelled, Multipliers
from lowdnn.engines.gemm import tiles
from lowdnn.engines.gemm.epilogue_reductions import EpilogueReductions, ReductionSlices
from lowdnn.engines.gemm.instructions import TRUE_FP32_TERMS
from lowdnn.engines.gemm.mma_cut import MmaCut
from lowdnn.engines.gemm.output_space import OutputSpace, full_loads
from lowdnn.engines.gemm.packing import packed_operand
from lowdnn.engines.gemm.tiles import Product, Tiling
from lowdnn.engines.indices import MAX_TILED_EXTENT
from lowdnn.engines.launch import (
    MAX_GRID_X,
    dependent_target,
    i32,
    i64,
    is_dependent,
)
from lowdnn.engines.limits import reduced
from lowdnn.engines.matmul.mma_operand import MAX_ALIGNMENT, MAX_PACKED_AXES, Operand
from lowdnn.engines.matmul.pixel_matmul import match_product
from lowdnn.engines.matmul.product_space import ProductSpace, is_contiguous_along_m
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import AnchoredWithReductions, PointwiseDag
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.plan import (
    Argument,
    KernelRef,
    Launch,
    Struct,
    WorkspacePointer,
)
from lowdnn.status import Status


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


class MatmulMma(ProblemEngine["_Problem"], Floored, Modelled):
    """See the module's docstring."""

    name = "matmul_mma"
    index = 2
    terms: ClassVar[int] = 1
    numerical_notes = tiles.NUMERICAL_NOTES
    anchors: Anchors = (ConvolutionOperation, MatmulOperation)
    limits = reduced(*anchors)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses types without mma instructions, unsuitable layouts, extents beyond the indices, slow reductions."""
        problem = self._matched(graph)
        if isinstance(problem, Refusal):
            return problem
        split = replace(problem.product, allows_split=True)
        slow = tiles.reduction_problem(split, arch) if problem.reductions.exist else ""
        return Refusal(self.name, slow) if slow else problem

    def floor(self, contraction: Contraction) -> Floor:
        return Floor(Multipliers.MMA_SYNC, waste=self.terms)

    def busy_launch(self, graph: OperationGraph, arch: ArchSpec) -> Launch:
        return tiles.busy_launch(self.accepted(graph, arch).product, arch)

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M, TILE_N (of the product as the kernel sees it), TILEK, STAGES, SPLIT_K_SLC."""
        return tiles.knobs(problem.product, arch)

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """Repacking launches if necessary, the product, and the sum of its slices if k is split."""
        product = problem.product
        tiling = tiles.tiling_of(self.name, product, arch, chosen)
        parts = _parts(problem, tiling, arch)
        parts.numerical_notes = tiles.numerical_notes(product.data_type, self.terms)
        return parts

    def precompiled(self) -> tuple[KernelRef, ...]:
        """Plain packed products at the large tile: row-major, and with b transposed."""
        return tuple(
            _plain_kernel(self, data_type, transposes_b)
            for data_type in (DataType.BFLOAT16, DataType.HALF, DataType.FLOAT)
            for transposes_b in (False, True)
        )

    def _matched(self, graph: OperationGraph) -> _Problem | Refusal:
        matched = match_product(graph)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        anchor = matched.anchor
        operands = {"matmul.a": anchor.a.data_type, "matmul.b": anchor.b.data_type}
        refused = tiles.refuse_types(operands, ("matmul.compute_type", anchor.matmul.compute_type), self.terms)
        if refused:
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_DATA_TYPE)
        problem = _Problem.of(matched)
        if isinstance(problem, str):
            return Refusal(self.name, problem)
        refused = problem.refuse_layout()
        if refused:
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_LAYOUT)
        refused = problem.refuse_extents()
        return Refusal(self.name, refused, Status.NOT_SUPPORTED_SHAPE) if refused else problem.in_terms(self.terms)


class MatmulMmaTf32x3(MatmulMma):
    """``matmul_mma_tf32x3``: products of FLOAT as accurate as those of fp32, each of three TF32 products.

    See ``include/tile/mma_tf32x3.cuh``; everything else is as in ``matmul_mma``.
    """

    name = "matmul_mma_tf32x3"
    index = 60
    numerical_notes = tiles.TRUE_FP32_NOTES
    terms: ClassVar[int] = TRUE_FP32_TERMS

    def precompiled(self) -> tuple[KernelRef, ...]:
        """A plain packed product at the large tile."""
        return (_plain_kernel(self, DataType.FLOAT, False),)


@dataclass(frozen=True)
class _Problem:
    """The product as the kernel sees it, a and b swapped where the output is contiguous along m."""

    dag: PointwiseDag
    output: OutputSpace
    rows: Operand
    columns: Operand
    product: Product
    reductions: EpilogueReductions

    @classmethod
    def of(cls, matched: AnchoredWithReductions[MatmulOperation]) -> _Problem | str:
        """The problem, or why a reduction cannot be computed."""
        anchor, dag = matched.anchor, matched.epilogue
        last = len(dag.dims) - 1
        is_swapped = is_contiguous_along_m(dag)
        multiplications = prod(dag.dims) * anchor.a.dims[-1]
        a = Operand.of(anchor.a, last - 1, last, multiplications)
        b = Operand.of(anchor.b, last, last - 1, multiplications)
        rows, columns = (b, a) if is_swapped else (a, b)
        space = ProductSpace.of(dag, rows, columns, is_swapped=is_swapped)
        rows = rows.over(space.row_strides[: space.batch_axes], space.row_stride)
        columns = columns.over(space.column_strides[: space.batch_axes], columns.stride)
        reductions = EpilogueReductions.of(matched.reductions, dag, space.output)
        if isinstance(reductions, str):
            return reductions
        product = Product(
            anchor.a.data_type,
            batches=space.batches,
            m=space.rows,
            n=space.columns,
            k=anchor.a.dims[-1],
            allows_split=not reductions.exist,
            allows_small_shape=not reductions.exist,
            has_small_pieces=min(rows.alignment, columns.alignment) < MAX_ALIGNMENT,
            operands=len(full_loads(dag, space.output)),
        )
        return cls(dag, space.output, rows, columns, product, reductions)

    def in_terms(self, terms: int) -> _Problem:
        """This problem with products of so many terms."""
        return self if terms == 1 else replace(self, product=replace(self.product, terms=terms))

    def refuse_layout(self) -> str:
        for operand in (self.rows, self.columns):
            if not operand.is_contiguous:
                strides = list(operand.tensor.strides)
                return (
                    f"{operand.tensor.label}.strides: expected 1 along a matrix dimension, or at most "
                    f"{MAX_PACKED_AXES} axes besides k to repack it, got {strides}"
                )
        return ""

    def refuse_extents(self) -> str:
        limits = (
            ("rows of all batches", self.output.rows, MAX_TILED_EXTENT),
            ("columns", self.product.n, MAX_TILED_EXTENT),
            ("bytes along k", self.product.k * self.product.element_bytes, MAX_TILED_EXTENT),
            ("tiles of 64 x 64", self.product.smallest_tiles, MAX_GRID_X),
        )
        for what, got, limit in limits:
            if got > limit:
                return f"matmul.c.dims: expected at most {limit} {what}, got {got}"
        return ""


def _parts(problem: _Problem, tiling: Tiling, arch: ArchSpec) -> PlanParts:
    parts, overlaps = PlanParts(), is_dependent(arch)
    if 0 in problem.dag.dims:
        return parts
    cut = MmaCut(problem.product, problem.dag, problem.output, problem.reductions, tiling)
    rows = packed_operand(parts, problem.rows.tensor.uid, problem.rows.packing, overlaps=overlaps)
    columns = packed_operand(parts, problem.columns.tensor.uid, problem.columns.packing, overlaps=overlaps)
    slices_at = cut.reserve(parts)
    left = ReductionSlices(problem.product.batches * tiling.rows, tiling.columns, tiling.block_count(problem.product))
    totals = problem.reductions.reserve(parts, left)
    arguments = _arguments(problem, cut, (rows, columns), slices_at, totals)
    kernel, vector = _kernel(problem, cut, dependent_target(arch)), problem.output.vector(cut.functor)
    operands = (problem.rows.tensor, problem.columns.tensor)
    cut.add_to(parts, kernel, arguments, operands, left, slices_at, vector, arch)
    problem.reductions.combine(parts, left, totals, overlaps=overlaps)
    return parts


def _kernel(problem: _Problem, cut: MmaCut, target: str) -> KernelRef:
    tile, shape, rows, columns = cut.tiling.tile, cut.tiling.tile.shape, problem.rows, problem.columns
    vector = cut.output.vector(cut.functor)
    params = Params(
        TYPE=problem.product.c_type,
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
        OUTPUT_RANK=cut.output.space.rank,
        ROW_AXES=cut.output.row_axes,
        VECTOR=1 if cut.is_split else vector,
        SPLIT_K=int(cut.is_split),
    )
    layout = f"{'mk'[params.A_K_MAJOR]}{params.A_ALIGNMENT}{'nk'[params.B_K_MAJOR]}{params.B_ALIGNMENT}"
    return cut.kernel("matmul/matmul_mma.cu", layout, params, vector, target)


def _arguments(
    problem: _Problem,
    cut: MmaCut,
    operands: tuple[Argument, Argument],
    slices_at: int,
    totals: tuple[WorkspacePointer, ...],
) -> Struct:
    product, tiling = problem.product, cut.tiling
    unused = (0,) * (cut.output.space.rank - len(problem.rows.batch_strides))
    return Struct(
        (
            *problem.reductions.arguments(totals),
            *operands,
            cut.slices_pointer(slices_at),
            *i64((problem.rows.leading_stride, problem.columns.leading_stride)),
            *i64((*problem.rows.batch_strides, *unused)),
            *i64((*problem.columns.batch_strides, *unused)),
            *i64((cut.slices.pitch, cut.slices.slice_elements)),
            *i32((product.m, product.n, product.k)),
            *i32((product.batches, tiling.rows, tiling.columns, tiling.split_tiles)),
            *cut.epilogue_arguments,
        )
    )


def _plain_kernel(engine: MatmulMma, data_type: DataType, transposes_b: bool) -> KernelRef:
    """The kernel of a packed 4096^3 product of ``data_type``; its extents are run-time values."""
    dims = (1, 4096, 4096)
    a, b, c = (Tensor(uid, data_type, dims, packed_strides(dims), alignment_bytes=16) for uid in (1, 2, 3))
    if transposes_b:
        b = Tensor(2, data_type, dims, packed_strides(dims, (0, 2, 1)), alignment_bytes=16)
    graph = OperationGraph([MatmulOperation(Matmul(DataType.FLOAT), a, b, c)])
    return engine.plan(graph, spec_named(BASE_TARGET), {}).kernels[0]
