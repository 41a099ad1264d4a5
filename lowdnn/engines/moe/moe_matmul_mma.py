"""``moe_matmul_mma``: grouped products of routed rows on tensor cores with ``mma.sync``, for sm_80 and newer.

fp16 and bf16 (summed in fp32), fp32 by TF32 (inputs rounded to 10 fraction bits, summed in fp32), int8 (summed in
int32). Any strides and alignments, every mode, any pointwise epilogue. Rows to gather are gathered into the workspace
first; weights without a contiguous dimension are repacked there.
Kernels: ``moe_matmul_mma.cu``, ``moe_gather.cu``, those of ``gemm/packing.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.codegen.functor import generate
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.floor import Contraction, Floor, Floored, Multipliers
from lowdnn.engines.gemm import tiles
from lowdnn.engines.gemm.instructions import MMA_ACCUMULATORS, MMA_UNITS
from lowdnn.engines.gemm.packing import packed_operand
from lowdnn.engines.gemm.tiles import MmaTile, Product, Tiling
from lowdnn.engines.indices import MAX_TILED_EXTENT
from lowdnn.engines.launch import MAX_GRID_X, ceil_div, i32, i64, macros, moved_bytes
from lowdnn.engines.limits import fused
from lowdnn.engines.matmul.mma_operand import MAX_ALIGNMENT, Operand
from lowdnn.engines.moe.arguments import (
    groups_argument,
    groups_problem,
    most_tiles,
    offset_type,
    routed_map,
    table_bytes,
)
from lowdnn.engines.moe.gather import Gather
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import MoeGroupedMatmulMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import Anchored, PointwiseDag, match_anchored
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul
from lowdnn.plan import KernelRef, Launch, Struct, Work
from lowdnn.status import Status

_MAX_VECTOR = 8


@dataclass(frozen=True)
class Params:
    """Macros of ``moe_matmul_mma.cu``."""

    TYPE: str
    OFFSET_TYPE: str
    ROUTING: int
    TILE_M: int
    TILE_N: int
    TILE_K: int
    WARPS_M: int
    WARPS_N: int
    STAGES: int
    B_K_MAJOR: int
    A_ALIGNMENT: int
    B_ALIGNMENT: int
    VECTOR: int


class MoeMatmulMma(ProblemEngine["_Problem"], Floored):
    """See the module's docstring."""

    name = "moe_matmul_mma"
    index = 27
    numerical_notes = tiles.NUMERICAL_NOTES
    anchors: Anchors = (MoeGroupedMatmul,)
    limits = fused(MoeGroupedMatmul)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses types without an mma instruction, rows not contiguous, and extents that are empty or exceed 32-bit
        indices.
        """
        matched = match_anchored(graph, MoeGroupedMatmul)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        operation = matched.anchor
        types = {"token": operation.token.data_type, "weight": operation.weight.data_type}
        compute = ("compute_type", operation.compute_type)
        if refused := tiles.refuse_types(types, compute):
            return Refusal(self.name, f"moe_grouped_matmul.{refused}", Status.NOT_SUPPORTED_DATA_TYPE)
        if refused := _extent_problem(operation):
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_SHAPE)
        problem = _Problem.of(matched)
        for operand in (problem.token, problem.weight):
            if not operand.is_contiguous or (operand is problem.token and not operand.is_k_major):
                strides = list(operand.tensor.strides)
                reason = (
                    f"{operand.tensor.label}.strides: expected contiguous rows of k, or of n for weights, got {strides}"
                )
                return Refusal(self.name, reason, Status.NOT_SUPPORTED_LAYOUT)
        return problem

    def floor(self, contraction: Contraction) -> Floor:
        return Floor(Multipliers.MMA_SYNC)

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M, TILE_N, TILEK, STAGES."""
        return tiles.knobs(problem.product, problem.without_table(arch))

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """Launches that gather or repack if necessary, and the product."""
        left = problem.without_table(arch)
        parts = _parts(problem, tiles.tiling_of(self.name, problem.product, left, chosen))
        parts.numerical_notes = tiles.numerical_notes(problem.product.data_type)
        return parts


@dataclass(frozen=True)
class _Problem:
    """The operands as the kernel reads them.  gather: the copy that token is, or None."""

    operation: MoeGroupedMatmul
    dag: PointwiseDag
    token: Operand
    weight: Operand
    gather: Gather | None

    @classmethod
    def of(cls, matched: Anchored[MoeGroupedMatmul]) -> _Problem:
        operation = matched.anchor
        multiplications = operation.flops // 2
        weight = Operand.of(operation.weight, 2, 1, multiplications)
        token = Operand.of(operation.token, 1, 2, multiplications)
        gather = Gather.of(operation)
        if gather is not None:
            token = Operand(operation.token, (0,), gather.pitch, 1, gather.rows, operation.token.dims[2])
        return cls(operation, matched.epilogue, token, weight, gather)

    @property
    def token_alignment(self) -> int:
        """Bytes to which rows are aligned; rows of a gathered copy are padded with zeros to whole pieces."""
        return MAX_ALIGNMENT if self.gather is not None else self.token.alignment

    def without_table(self, arch: ArchSpec) -> ArchSpec:
        """``arch`` with the shared memory that the table of tiles leaves for a block's tile."""
        table = table_bytes(self.operation.groups)
        return replace(arch, shared_bytes_per_block=arch.shared_bytes_per_block - table)

    @property
    def product(self) -> Product:
        """The product for groups of equal size."""
        operation = self.operation
        rows, columns = operation.output.dims[1:]
        filled = min(operation.groups.count, rows)
        return Product(
            operation.token.data_type,
            batches=filled,
            m=ceil_div(rows, filled),
            n=columns,
            k=operation.token.dims[2],
            allows_split=False,
            has_small_pieces=min(self.token_alignment, self.weight.alignment) < MAX_ALIGNMENT,
        )


def _parts(problem: _Problem, tiling: Tiling) -> PlanParts:
    parts, operation, tile = PlanParts(), problem.operation, tiling.tile
    groups, columns = operation.groups, operation.output.dims[2]
    functor = generate(problem.dag, accumulator=MMA_ACCUMULATORS[operation.token.data_type], vector_axis=2)
    vector = min(functor.vector, _MAX_VECTOR)
    token = (
        problem.gather.add_to(parts)
        if problem.gather
        else packed_operand(parts, operation.token.uid, problem.token.packing)
    )
    weight = packed_operand(parts, operation.weight.uid, problem.weight.packing)
    column_tiles = ceil_div(columns, tile.shape.n)
    blocks = most_tiles(groups, tile.shape.m) * column_tiles
    strides = (problem.token.stride, problem.weight.leading_stride, *problem.weight.batch_strides)
    arguments = Struct(
        (
            token,
            weight,
            groups_argument(operation.first_token_offset, groups),
            *i64(strides),
            *i32((columns, operation.token.dims[2], column_tiles, tile.shared_bytes)),
            routed_map(operation),
            functor.arguments,
        )
    )
    product = problem.product
    operands = sum(tensor.span_bytes for tensor in (operation.token, operation.weight))
    parts.launches.append(
        Launch(
            parts.kernel(_kernel(problem, tile, functor.text, functor.digest, vector)),
            grid=(blocks, 1, 1),
            block=(tile.shape.threads, 1, 1),
            arguments=(arguments,),
            shared_bytes=tile.shared_bytes + table_bytes(groups),
            work=Work(
                flops=round(tiling.flops(product) * product.slowdown(tiling.split_tiles)),
                bytes=operands + moved_bytes(problem.dag),
                unit=MMA_UNITS[product.data_type],
            ),
        )
    )
    return parts


def _kernel(problem: _Problem, tile: MmaTile, text: str, digest: str, vector: int) -> KernelRef:
    operation, facts = problem.operation, dtypes.info(problem.operation.token.data_type)
    params = Params(
        TYPE=facts.c_type,
        OFFSET_TYPE=offset_type(operation.first_token_offset),
        ROUTING=int(operation.mode is MoeGroupedMatmulMode.SCATTER) * int(operation.mode),
        TILE_M=tile.shape.m,
        TILE_N=tile.shape.n,
        TILE_K=tile.k,
        WARPS_M=tile.shape.warps_m,
        WARPS_N=tile.shape.warps_n,
        STAGES=tile.stages,
        B_K_MAJOR=int(problem.weight.is_k_major),
        A_ALIGNMENT=problem.token_alignment,
        B_ALIGNMENT=problem.weight.alignment,
        VECTOR=vector,
    )
    layout = f"k{params.A_ALIGNMENT}{'nk'[params.B_K_MAJOR]}{params.B_ALIGNMENT}_{params.OFFSET_TYPE}_{params.ROUTING}"
    return KernelRef(
        name=f"moe_matmul_mma_{facts.short_name}_{tile.label}_{layout}_v{vector}_sm80_{digest}",
        source="moe/moe_matmul_mma.cu",
        target=BASE_TARGET,
        parameters=macros(params),
        generated=text,
    )


def _extent_problem(operation: MoeGroupedMatmul) -> str:
    """Why the operation is empty or exceeds the kernel's indices; empty if neither."""
    rows, columns = operation.output.dims[1:]
    if 0 in (rows, columns, operation.token.dims[2]):
        return f"moe_grouped_matmul.dims: expected no extent of 0, got {[rows, columns, operation.token.dims[2]]}"
    largest = max(rows, columns, operation.token.dims[2] * operation.token.element_bytes)
    if largest > MAX_TILED_EXTENT:
        return f"moe_grouped_matmul.dims: expected at most {MAX_TILED_EXTENT} rows, columns, bytes of k, got {largest}"
    blocks = most_tiles(operation.groups, 64) * ceil_div(columns, 64)
    if blocks > MAX_GRID_X:
        return f"moe_grouped_matmul.output.dims: expected at most {MAX_GRID_X} tiles of 64 x 64, got {blocks}"
    gather = Gather.of(operation)
    return (gather.problem if gather else "") or groups_problem("moe_grouped_matmul", operation.groups)
