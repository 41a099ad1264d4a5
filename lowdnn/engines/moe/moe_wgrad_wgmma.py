"""``moe_wgrad_wgmma``: gradients of experts' weights on the tensor cores of sm_90a with TMA and wgmma.

One persistent launch over all experts; the offsets on the device give the rows of each tile's sum. fp16 and bf16,
summed in fp32. Operands whose elements are contiguous are read in place if a tensor map describes them; others are
repacked into the workspace first. Any pointwise epilogue.
Kernels: ``moe_wgrad_wgmma.cu``, those of ``gemm/packing.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import WGMMA_TARGET
from lowdnn.codegen.space import space_of
from lowdnn.engines.base import (
    Anchors,
    Choices,
    Knob,
    Refusal,
)
from lowdnn.engines.gemm import tiles, wgmma_model
from lowdnn.engines.gemm.instructions import WgmmaType, wgmma_type
from lowdnn.engines.gemm.output_space import OutputSpace
from lowdnn.engines.gemm.simt_tile import vector_axis
from lowdnn.engines.gemm.wgmma_cut import WgmmaCut
from lowdnn.engines.gemm.wgmma_output import OutputStore, mapped_operand
from lowdnn.engines.gemm.wgmma_product import WgmmaProduct
from lowdnn.engines.gemm.wgmma_tiles import Schedule
from lowdnn.engines.indices import MAX_TILED_EXTENT
from lowdnn.engines.launch import ceil_div, divider, macros, moved_bytes
from lowdnn.engines.limits import fused
from lowdnn.engines.matmul.wgmma_operand import WgmmaOperand, operand_maps
from lowdnn.engines.moe.arguments import groups_argument, offset_type
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import Anchored, PointwiseDag, match_anchored
from lowdnn.ops.moe_grouped_matmul_backward import MoeGroupedMatmulBackward
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Struct, Work
from lowdnn.status import Status


@dataclass(frozen=True)
class Params:
    """Macros of ``moe_wgrad_wgmma.cu``, in addition to those of the tile, its data types and the output."""

    OFFSET_TYPE: str
    TRANSPOSED: int = 0


class MoeWgradWgmma(ProblemEngine["_Problem"]):
    """See the module's docstring."""

    name = "moe_wgrad_wgmma"
    index = 19
    numerical_notes: tuple[NumericalNote, ...] = tiles.NUMERICAL_NOTES
    anchors: Anchors = (MoeGroupedMatmulBackward,)
    limits = fused(MoeGroupedMatmulBackward)
    target = WGMMA_TARGET

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses other architectures, types that wgmma takes only K-major, empty extents, rows not contiguous."""
        matched = match_anchored(graph, MoeGroupedMatmulBackward)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        operation = matched.anchor
        types = operation.token.data_type, operation.doutput.data_type
        kind = wgmma_type(*types)
        if kind is None or not kind.has_mn_major or operation.compute_type is DataType.DOUBLE:
            got = f"{types[0].name} x {types[1].name}, summed in {operation.compute_type.name}"
            reason = f"moe_grouped_matmul_bwd.token, doutput: expected HALF or BFLOAT16 summed in FLOAT, got {got}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_DATA_TYPE)
        if refused := _extent_problem(operation):
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_SHAPE)
        problem = _Problem.of(matched, kind)
        return Refusal(self.name, problem, Status.NOT_SUPPORTED_LAYOUT) if isinstance(problem, str) else problem

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """The tiles' knobs (``wgmma_model``) and OUTPUT_TMA_ENABLE."""
        product = problem.product
        return (
            *wgmma_model.knobs(product, wgmma_model.best(product, arch)),
            Knob("store", KnobType.OUTPUT_TMA_ENABLE, (0, 1), 1, "1: store by tensor map where the output has one"),
        )

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """Repacking launches if necessary, and the product."""
        tiling = wgmma_model.tiling_of(self.name, problem.product, arch, chosen)
        parts = _Cut(tiling, bool(chosen[KnobType.OUTPUT_TMA_ENABLE]), problem).parts(arch)
        parts.numerical_notes = tiles.numerical_notes(problem.kind.a)
        return parts


@dataclass(frozen=True)
class _Problem:
    """The product as rows and columns of dweight, whose columns are contiguous, and the operands that give them."""

    operation: MoeGroupedMatmulBackward
    dag: PointwiseDag
    kind: WgmmaType
    rows: WgmmaOperand
    columns: WgmmaOperand
    column_axis: int

    @classmethod
    def of(cls, matched: Anchored[MoeGroupedMatmulBackward], kind: WgmmaType) -> _Problem | str:
        """The problem, or why an operand can be neither read in place nor repacked."""
        operation = matched.anchor
        token, doutput = _operand(operation.token, kind), _operand(operation.doutput, kind)
        if isinstance(token, str):
            return token
        if isinstance(doutput, str):
            return doutput
        column_axis = vector_axis(matched.epilogue, (2, 1))
        rows, columns = (token, doutput) if column_axis == 2 else (doutput, token)
        return cls(operation, matched.epilogue, kind, rows, columns, column_axis)

    @property
    def output(self) -> OutputSpace:
        """The space (experts, rows, columns)."""
        return OutputSpace(space_of(self.dag).permuted((0, 3 - self.column_axis, self.column_axis)), row_axes=2)

    @property
    def k_blocks(self) -> int:
        """Blocks of k of an expert, for experts with equally many rows."""
        groups = self.operation.groups
        return max(ceil_div(groups.rows, groups.experts * self.kind.stage_k), 1)

    @cached_property
    def product(self) -> WgmmaProduct:
        """The product for experts with equally many rows, as the tiles' model sees it."""
        rows, columns = self.rows, self.columns
        has_operand = mapped_operand(self.dag, self.output, rows.extent) is not None
        return WgmmaProduct(
            self.kind,
            self.operation.groups.experts,
            rows.extent,
            columns.extent,
            self.k_blocks,
            a_bytes=rows.moved_bytes,
            b_bytes=columns.moved_bytes,
            output_bytes=moved_bytes(self.dag),
            is_a_mn_major=True,
            is_b_mn_major=True,
            allows_split=False,
            has_operand=has_operand,
            is_a_misaligned=rows.is_misaligned,
            is_b_misaligned=columns.is_misaligned,
        )


@dataclass(frozen=True)
class _Cut(WgmmaCut):
    """A problem and how it is cut: the plan's kernels and launches."""

    problem: _Problem

    @cached_property
    def schedule(self) -> Schedule:
        return self.tiling.schedule(self.problem.product)

    @cached_property
    def output(self) -> OutputStore:
        problem = self.problem
        return OutputStore.of(
            problem.dag,
            problem.output,
            problem.kind.accumulator,
            problem.rows.extent,
            tile_columns=self.tile.n,
            by_map=self.allows_map,
            operand_buffers=self.tile.operand_buffers,
        )

    def parts(self, arch: ArchSpec) -> PlanParts:
        problem, parts, tile = self.problem, PlanParts(), self.tile
        maps = operand_maps(parts, tile, problem.kind, (problem.rows, problem.columns), ((1,), (1,)))
        operation, grid = problem.operation, self.schedule.grid(arch.sm_count)
        groups = groups_argument(operation.first_token_offset, operation.groups)
        one = Struct((Struct(divider(1)),))
        arguments = Struct((*maps, self.output.argument(tile), self.schedule.argument, groups, one))
        work = Work(self.schedule.occupied_flops(grid), problem.product.moved_bytes, problem.kind.unit)
        kernel = parts.kernel(self._kernel())
        parts.launches.append(self.tile_launch(kernel, grid, arguments, self.output.store, work))
        return parts

    def _kernel(self) -> KernelRef:
        kind, output = self.problem.kind, self.output
        params = Params(offset_type(self.problem.operation.first_token_offset))
        ending = f"{output.label}_v{output.vector}_sm90a_{output.functor.digest}"
        return KernelRef(
            name=f"moe_wgrad_wgmma_{kind.label}_{self.tile.label}_{params.OFFSET_TYPE}_{ending}",
            source="moe/moe_wgrad_wgmma.cu",
            target=WGMMA_TARGET,
            parameters=(*kind.macros, *self.tile.macros, *macros(params), *output.macros),
            generated=output.functor.text,
        )


def _operand(tensor: Tensor, kind: WgmmaType) -> WgmmaOperand | str:
    """The operand whose elements are the rows or columns and whose rows are k, or why it cannot be read so."""
    operand = WgmmaOperand.of(tensor, 2, 1, kind)
    if isinstance(operand, str) or operand.is_mn_major:
        return operand
    return f"{tensor.label}.strides: expected contiguous elements of a row, got {list(tensor.strides)}"


def _extent_problem(operation: MoeGroupedMatmulBackward) -> str:
    """Why extents are empty or exceed the kernel's indices; empty if neither."""
    experts, depth, columns = operation.dweight.dims
    dims = (experts, operation.groups.rows, depth, columns)
    if 0 in dims:
        return f"moe_grouped_matmul_bwd.dims: expected no extent of 0, got {list(dims)} (E, rows, K, N)"
    largest = max(operation.groups.rows, experts * max(depth, columns), experts * depth * columns // (64 * 8))
    if largest > MAX_TILED_EXTENT:
        return f"moe_grouped_matmul_bwd.dweight.dims: expected at most {MAX_TILED_EXTENT} rows and tiles, got {largest}"
    return ""
