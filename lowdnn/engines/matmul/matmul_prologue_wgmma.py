"""``matmul_prologue_wgmma``: products on sm_90a with one operand that is a pointwise function of a tensor in memory.

Scales, biases and activations before the product, and operands of one byte in products of fp16 or bf16. The operand
passes through registers (``include/tile/register_operand.cuh``) instead of through memory in a launch of its own. It is
contiguous along k; other operands of its function are constant along its rows or along k. Any batches, tails and
pointwise epilogue. Forward convolutions of one tap are such products too (``pixel_matmul``).
Kernels: ``matmul_prologue_wgmma.cu``, those of ``gemm/packing.py`` for the other operand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import WGMMA_TARGET
from lowdnn.codegen.space import strides_over
from lowdnn.engines.base import (
    Anchors,
    Choices,
    Knob,
    Refusal,
)
from lowdnn.engines.gemm import tiles, wgmma_model
from lowdnn.engines.gemm.converted_operand import ConvertedOperand, another_tensor, fusion_problem, raw_tensor
from lowdnn.engines.gemm.instructions import WgmmaType, wgmma_type
from lowdnn.engines.gemm.packing import packed_operand
from lowdnn.engines.gemm.wgmma_cut import WgmmaCut
from lowdnn.engines.gemm.wgmma_output import OutputStore, mapped_operand
from lowdnn.engines.gemm.wgmma_product import Conversion, WgmmaProduct
from lowdnn.engines.gemm.wgmma_tiles import ROW_SWIZZLES
from lowdnn.engines.launch import ceil_div, divider, macros, moved_bytes
from lowdnn.engines.limits import reduced
from lowdnn.engines.matmul.pixel_matmul import as_matmul
from lowdnn.engines.matmul.product_space import ProductSpace, is_contiguous_along_m, refuse_nothing
from lowdnn.engines.matmul.wgmma_operand import WgmmaOperand
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.graph.prologue_pattern import Prologued, match_prologued
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Struct, TensorMap, TensorPointer, Work
from lowdnn.status import Status
from lowdnn.tensor_map import TiledMap

#: Batch axes of a tensor map, in addition to the two of a matrix.
_MAX_BATCH_AXES = 3
#: First key, downwards, of the prologue's operands in the index space; the keys of the product's operands are above.
_FIRST_CARRIED = -4


@dataclass(frozen=True)
class Params:
    """Macros of ``matmul_prologue_wgmma.cu``, in addition to those of the tile, its data types, its operand and the
    output.
    """

    Q_MN_MAJOR: int
    BATCH_AXES: int
    TRANSPOSED: int


class MatmulPrologueWgmma(ProblemEngine["_Problem"]):
    """See the module's docstring."""

    name = "matmul_prologue_wgmma"
    index = 14
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.TENSOR_CORE,)
    anchors: Anchors = (ConvolutionOperation, MatmulOperation)
    limits = reduced(*anchors)
    target = WGMMA_TARGET

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses other architectures, types and layouts, and products that are faster after a pointwise launch."""
        problem = self._matched(graph)
        if isinstance(problem, Refusal):
            return problem
        slow = problem.slowness(arch)
        return Refusal(self.name, slow) if slow else problem

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """The tiles' knobs (``wgmma_model``) and OUTPUT_TMA_ENABLE."""
        return (
            *wgmma_model.knobs(problem.product, wgmma_model.best(problem.product, arch)),
            Knob("store", KnobType.OUTPUT_TMA_ENABLE, (0, 1), 1, "1: store by tensor map where the output has one"),
        )

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """A repacking launch of the other operand if necessary, and the product."""
        tiling = wgmma_model.tiling_of(self.name, problem.product, arch, chosen)
        parts = _Cut(tiling, bool(chosen[KnobType.OUTPUT_TMA_ENABLE]), problem).parts(arch)
        parts.numerical_notes = tiles.numerical_notes(problem.kind.a)
        return parts

    def _matched(self, graph: OperationGraph) -> _Problem | Refusal:
        product = as_matmul(graph)
        if isinstance(product, str):
            return Refusal(self.name, product)
        matched = match_prologued(product, MatmulOperation)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        anchor = matched.matched.anchor
        kind = wgmma_type(anchor.a.data_type, anchor.b.data_type)
        if kind is None or kind.element_bytes != 2:
            got = f"{anchor.a.data_type.name} x {anchor.b.data_type.name}"
            reason = f"matmul.a.data_type, b.data_type: expected BFLOAT16 or HALF after the prologue, got {got}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_DATA_TYPE)
        if anchor.matmul.compute_type is DataType.DOUBLE:
            reason = "matmul.compute_type: expected FLOAT or HALF, got DOUBLE"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_DATA_TYPE)
        if reason := refuse_nothing(anchor, matched.matched.epilogue.dims):
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE)
        problem = _Problem.of(matched, kind)
        if isinstance(problem, str):
            return Refusal(self.name, problem, Status.NOT_SUPPORTED_LAYOUT)
        refused = problem.space.extent_problem(problem.q.depth)
        return Refusal(self.name, refused, Status.NOT_SUPPORTED_SHAPE) if refused else problem


@dataclass(frozen=True)
class _Problem:
    """The product as rows and columns of the output, whose columns are contiguous, and the operands that give them.

    converted: the operand with the prologue, over (batch axes, lines of p, k).  p: its tensor in memory.
    is_transposed: whether p gives the output's columns.
    """

    converted: ConvertedOperand
    dag: PointwiseDag
    space: ProductSpace
    kind: WgmmaType
    p: WgmmaOperand
    q: WgmmaOperand
    is_transposed: bool

    @classmethod
    def of(cls, matched: Prologued[MatmulOperation], kind: WgmmaType) -> _Problem | str:
        """The problem, or why an operand cannot be read."""
        prologue, dag = matched.prologue, matched.matched.epilogue
        raw = _raw_of(prologue, matched.port)
        if isinstance(raw, str):
            return raw
        last = len(dag.dims) - 1
        anchor, is_a = matched.matched.anchor, matched.port == "a"
        a = WgmmaOperand.of(raw if is_a else anchor.a, last - 1, last, kind)
        b = WgmmaOperand.of(anchor.b if is_a else raw, last, last - 1, kind)
        if isinstance(a, str):
            return a
        if isinstance(b, str):
            return b
        p, q = (a, b) if is_a else (b, a)
        if p.packing is not None or p.is_mn_major:
            got = f"strides {list(raw.strides)}, alignment {raw.alignment_bytes}"
            return f"{raw.label}: expected a tensor map of 16 bytes or multiples along k, got {got}"
        is_swapped = is_contiguous_along_m(dag)
        rows, columns = (b, a) if is_swapped else (a, b)
        others = [tensor for tensor in prologue.loads if tensor.uid != raw.uid]
        own = {tensor.uid: strides_over(tensor, raw.dims) for tensor in others}
        keys = {tensor.uid: _FIRST_CARRIED - number for number, tensor in enumerate(others)}
        carried = {
            keys[uid]: (*steps[:-2], *((steps[-2], 0) if is_a else (0, steps[-1]))) for uid, steps in own.items()
        }
        space = ProductSpace.of(dag, rows, columns, is_swapped=is_swapped, carried=carried)
        if space.batch_axes > _MAX_BATCH_AXES:
            most, extents = _MAX_BATCH_AXES, list(space.batch_extents)
            return f"matmul.c.dims: expected at most {most} batch axes that do not merge, got {extents}"
        is_transposed = is_a == is_swapped
        strides: list[tuple[int, tuple[int, ...]]] = []
        for tensor in others:
            over = space.output.space.strides[keys[tensor.uid]]
            along_rows, along_columns = sum(over[space.batch_axes : -1]), over[-1]
            if is_transposed and along_rows:
                return f"{tensor.label}.dims: expected one extent for batches that are rows of the output, got others"
            k_stride = own[tensor.uid][-1 if is_a else -2]
            line_stride = along_columns if is_transposed else along_rows
            strides.append((tensor.uid, (*(over[: space.batch_axes] or (0,)), line_stride, k_stride)))
        by_rows = rows.over(space.row_strides[: space.batch_axes] or (0,), space.row_stride, space.rows)
        by_columns = columns.over(space.column_strides[: space.batch_axes] or (0,), columns.stride, space.columns)
        p, q = (by_columns, by_rows) if is_transposed else (by_rows, by_columns)
        functor_extents = (*(space.batch_extents or (1,)), p.extent, p.depth)
        converted = ConvertedOperand(prologue, raw, functor_extents, tuple(strides))
        return cls(converted, dag, space, kind, p, q, is_transposed)

    @property
    def batch_extents(self) -> tuple[int, ...]:
        """The batch extents, at least one: kernels have a batch axis."""
        return self.space.batch_extents or (1,)

    @property
    def has_operand(self) -> bool:
        """Whether the epilogue loads a tensor of the output's size by tensor map."""
        return not self.is_transposed and mapped_operand(self.dag, self.space.output, self.space.rows) is not None

    @cached_property
    def product(self) -> WgmmaProduct:
        """The product as the tiles' model sees it."""
        return WgmmaProduct(
            self.kind,
            self.space.batches,
            self.p.extent,
            self.q.extent,
            ceil_div(self.p.depth, self.kind.stage_k),
            a_bytes=self.converted.moved_bytes,
            b_bytes=self.q.moved_bytes,
            output_bytes=moved_bytes(self.dag),
            is_b_mn_major=self.q.is_mn_major,
            allows_clusters=False,
            allows_split=False,
            has_operand=self.has_operand,
            is_a_misaligned=self.p.is_misaligned,
            is_b_misaligned=self.q.is_misaligned,
            conversion=Conversion.REGISTERS,
            functions=self.converted.functions,
            # Measured only where p gives the output's rows: few columns, such as weights, are slowed down less.
            converts_late=self.converted.converts_late and not self.is_transposed,
        )

    @property
    def has_tail(self) -> bool:
        return self.p.depth % self.kind.stage_k != 0

    def slowness(self, arch: ArchSpec) -> str:
        """Why the product is faster after a launch that writes the prologue's result; empty if it is not."""
        unfused = replace(
            self.product,
            a_bytes=self.converted.converted_bytes,
            allows_clusters=True,
            allows_split=True,
            conversion=Conversion.NONE,
            functions=0,
            converts_late=False,
        )
        fused_s, unfused_s = (wgmma_model.least_seconds(product, arch) for product in (self.product, unfused))
        return fusion_problem(self.converted, fused_s, unfused_s, arch)


@dataclass(frozen=True)
class _Cut(WgmmaCut):
    """A problem and how it is cut: the plan's kernels and launches."""

    problem: _Problem

    @cached_property
    def output(self) -> OutputStore:
        space = self.problem.space
        return OutputStore.of(
            self.problem.dag,
            space.output,
            self.problem.kind.accumulator,
            space.rows,
            tile_columns=self.tile.n,
            by_map=self.allows_map and not self.problem.is_transposed,
            operand_buffers=self.tile.operand_buffers,
        )

    def parts(self, arch: ArchSpec) -> PlanParts:
        parts, problem = PlanParts(), self.problem
        p, q, stage_k = problem.p, problem.q, problem.kind.stage_k
        q_at = packed_operand(parts, q.tensor.uid, q.packing, overlaps=True)
        maps = (
            TensorMap(TensorPointer(p.tensor.uid), _raw_layout(problem, self.tile.m)),
            TensorMap(q_at, q.layout(problem.kind.map_type, problem.batch_extents, self.tile.n, stage_k)),
        )
        inputs = problem.converted.argument
        batches = Struct(tuple(Struct(divider(extent)) for extent in problem.batch_extents))
        schedule = self.tiling.schedule(problem.product)
        grid = schedule.grid(arch.sm_count)
        arguments = Struct((*maps, self.output.argument(self.tile), inputs, schedule.argument, batches))
        work = Work(schedule.occupied_flops(grid), problem.product.moved_bytes, problem.kind.unit)
        kernel = parts.kernel(self._kernel())
        parts.launches.append(self.tile_launch(kernel, grid, arguments, self.output.store, work))
        return parts

    def _kernel(self) -> KernelRef:
        problem, output = self.problem, self.output
        converted, has_tail = problem.converted, problem.has_tail
        params = Params(
            Q_MN_MAJOR=int(problem.q.is_mn_major),
            BATCH_AXES=len(problem.batch_extents),
            TRANSPOSED=int(problem.is_transposed),
        )
        types = f"{converted.label(has_tail=has_tail)}_{problem.kind.label}"
        layout = f"{'kn'[params.Q_MN_MAJOR]}{params.BATCH_AXES}{'t' * params.TRANSPOSED}"
        space = f"{output.output.row_axes}of{output.output.space.rank}_{output.label}_v{output.vector}"
        digests = f"{converted.functor.digest}_{output.functor.digest}"
        return KernelRef(
            name=f"matmul_prologue_wgmma_{types}_{self.tile.label}_{layout}_{space}_sm90a_{digests}",
            source="matmul/matmul_prologue_wgmma.cu",
            target=WGMMA_TARGET,
            parameters=(
                *problem.kind.macros,
                *self.tile.macros,
                *macros(params),
                *converted.macros(has_tail=has_tail),
                *output.macros,
            ),
            generated=f"{converted.functor.text}\n{output.functor.text}",
        )


def _raw_of(prologue: PointwiseDag, port: str) -> Tensor | str:
    """The tensor that passes through registers; other operands of the prologue must be constant along lines or k."""
    raw = raw_tensor(prologue, f"matmul.{port}")
    lines_and_depth = slice(-2, None)
    for tensor in prologue.loads:
        if tensor is not raw and min(strides_over(tensor, prologue.dims)[lines_and_depth]) > 0:
            return another_tensor(tensor, f"matmul.{port}")
    return raw


def _raw_layout(problem: _Problem, rows: int) -> TiledMap:
    """The map of p's rows in memory, swizzled over the bytes of a stage's row."""
    converted = problem.converted
    layout = problem.p.layout(converted.map_type, problem.batch_extents, rows, problem.kind.stage_k)
    return replace(layout, swizzle=ROW_SWIZZLES[converted.row_bytes])
