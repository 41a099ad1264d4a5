"""``matmul_wgmma``: matrix products on the tensor cores of sm_90a with TMA and wgmma.

fp16, bf16, fp8 in any pair and fp32 by TF32 (inputs rounded to 10 fraction bits) are summed in fp32, int8 in int32.
Operands are read in place if a tensor map describes them. Others, and operands of types that wgmma takes only K-major,
are repacked into the workspace first. Any batches, broadcasts, tails and pointwise epilogue. A value of the epilogue
may be reduced over its rows, over its columns, and as a whole. Convolutions that read each pixel once are such products
too, in all three directions (``pixel_matmul``).
k may be cut into parts. SPLIT_K_SLC: a second launch sums them. TILE_CGA_K: the blocks of a cluster sum them through
their shared memory; with STREAM_K, only for the last tiles. The order of the sums is fixed.
Kernels: ``matmul_wgmma.cu``, ``gemm/split_k_reduce.cu``, those of ``gemm/packing.py``,
``reduction/reduction_combine.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from lowdnn.arch.specs import ArchSpec, spec_named
from lowdnn.arch.targets import WGMMA_TARGET
from lowdnn.engines.base import (
    Anchors,
    Choices,
    Knob,
    Refusal,
)
from lowdnn.engines.floor import Contraction, Floor, Floored, Modelled, Multipliers
from lowdnn.engines.gemm import tiles, wgmma_model
from lowdnn.engines.gemm.converted_operand import functions_of
from lowdnn.engines.gemm.epilogue_reductions import EpilogueReductions
from lowdnn.engines.gemm.instructions import (
    TRUE_FP32_TERMS,
    TRUE_FP32_TYPES,
    WGMMA_TYPES,
    WgmmaType,
    wgmma_type,
)
from lowdnn.engines.gemm.output_space import Slices, add_slice_sum
from lowdnn.engines.gemm.wgmma_cut import WgmmaCut
from lowdnn.engines.gemm.wgmma_output import (
    MAP_COLUMNS,
    OutputStore,
    mapped_operand,
    most_accumulators,
    reductions_go_by_map,
    slice_argument,
    slice_macros,
)
from lowdnn.engines.gemm.wgmma_product import WgmmaProduct
from lowdnn.engines.gemm.wgmma_tiles import WARPGROUP_ROWS, Schedule, TileStore
from lowdnn.engines.indices import MAX_TILED_EXTENT
from lowdnn.engines.launch import ceil_div, divider, macros, moved_bytes
from lowdnn.engines.limits import reduced
from lowdnn.engines.matmul.pixel_matmul import match_product
from lowdnn.engines.matmul.product_space import ProductSpace, is_contiguous_along_m, refuse_nothing
from lowdnn.engines.matmul.wgmma_operand import WgmmaOperand, operand_maps
from lowdnn.engines.model.clock import moving_s
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import AnchoredWithReductions, PointwiseDag
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.plan import KernelRef, Launch, Struct, TensorMap, Work
from lowdnn.status import Status

#: Batch axes of a tensor map, in addition to the two of a matrix.
_MAX_BATCH_AXES = 3
#: Most rows of the output for which transposed tiles are tried whatever the layouts.
_MAX_TRANSPOSED_ROWS = 128


@dataclass(frozen=True)
class Params:
    """Macros of ``matmul_wgmma.cu``, in addition to those of the tile, its data types and the output."""

    P_MN_MAJOR: int
    Q_MN_MAJOR: int
    BATCH_AXES: int
    TRANSPOSED: int
    TF32X3: int


class MatmulWgmma(ProblemEngine["_Problem"], Modelled):
    """See the module's docstring."""

    name = "matmul_wgmma"
    index = 7
    terms: ClassVar[int] = 1
    in_parts: int | None = None
    numerical_notes: tuple[NumericalNote, ...] = (
        *tiles.NUMERICAL_NOTES,
        NumericalNote.REDUCED_PRECISION_REDUCTION,
    )
    anchors: Anchors = (ConvolutionOperation, MatmulOperation)
    limits = reduced(*anchors)
    target = WGMMA_TARGET

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses other architectures, types without wgmma, empty extents, odd batches, slow reductions."""
        problem = self._matched(graph)
        if isinstance(problem, Refusal):
            return problem
        slow = wgmma_model.reduction_problem(problem.product(False), arch) if problem.reductions.exist else ""
        return Refusal(self.name, slow) if slow else problem

    def busy_launch(self, graph: OperationGraph, arch: ArchSpec) -> Launch:
        problem = self.accepted(graph, arch)
        return wgmma_model.busy_launch(problem.product(problem.prefers_transposed(arch)), arch)

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """The tiles' knobs (``wgmma_model``), SWAP_AB, OUTPUT_TMA_ENABLE and for fp8 REDUCTION_MODE."""
        is_transposed = problem.prefers_transposed(arch)
        product = problem.product(is_transposed)
        return (
            *wgmma_model.knobs(product, wgmma_model.best(product, arch)),
            Knob("swap", KnobType.SWAP_AB, (0, 1), int(is_transposed), "1: the tile's rows are the output's columns"),
            Knob("store", KnobType.OUTPUT_TMA_ENABLE, (0, 1), 1, "1: store by tensor map where the output has one"),
            *wgmma_model.promotion_knobs(problem.kind, problem.compute_type),
        )

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """Repacking launches if necessary, the product, and the sum of its slices if k is split."""
        is_transposed = bool(chosen[KnobType.SWAP_AB])
        product = problem.product(is_transposed, is_promoted=wgmma_model.chosen_promotion(problem.kind, chosen))
        tiling = wgmma_model.tiling_of(self.name, product, arch, chosen)
        parts = _Cut(tiling, bool(chosen[KnobType.OUTPUT_TMA_ENABLE]), problem, is_transposed).parts(arch)
        parts.numerical_notes = wgmma_model.sum_notes(problem.kind, chosen)
        return parts

    def precompiled(self) -> tuple[KernelRef, ...]:
        """Plain packed products at the default tile of large products: row-major, and with b transposed."""
        return tuple(
            _plain_kernel(data_type, transposes_b)
            for data_type in (DataType.BFLOAT16, DataType.HALF)
            for transposes_b in (False, True)
        )

    def _matched(self, graph: OperationGraph) -> _Problem | Refusal:
        matched = match_product(graph)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        anchor = matched.anchor
        kind = wgmma_type(anchor.a.data_type, anchor.b.data_type, self.terms)
        if kind is None:
            return Refusal(self.name, _refuse_types(anchor, self.terms), Status.NOT_SUPPORTED_DATA_TYPE)
        if anchor.matmul.compute_type is DataType.DOUBLE:
            reason = "matmul.compute_type: expected FLOAT, FAST_FLOAT_FOR_FP8, HALF or INT32, got DOUBLE"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_DATA_TYPE)
        if reason := refuse_nothing(anchor, matched.epilogue.dims):
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE)
        problem = _Problem.of(matched, kind, self.in_parts)
        if isinstance(problem, str):
            return Refusal(self.name, problem, Status.NOT_SUPPORTED_LAYOUT)
        refused = problem.space.extent_problem(problem.rows.depth) or problem.split_problem
        return Refusal(self.name, refused, Status.NOT_SUPPORTED_SHAPE) if refused else problem


class MatmulWgmmaTf32x3(MatmulWgmma, Floored):
    """``matmul_wgmma_tf32x3``: products of FLOAT as accurate as those of fp32, each of three TF32 products.

    The operand that gives the tiles' columns is split into parts by a launch of its own (``gemm/tf32_split.cu``), the
    other one in registers (``include/tile/tf32x3_operands.cuh``); everything else is as in ``matmul_wgmma``.
    """

    name = "matmul_wgmma_tf32x3"
    index = 66
    terms: ClassVar[int] = TRUE_FP32_TERMS
    numerical_notes = tiles.TRUE_FP32_NOTES

    def __init__(self, in_parts: int | None = None) -> None:
        """in_parts: the uid of an operand with contiguous k that lies in memory as ``gemm/tf32_split.py`` stores it."""
        self.in_parts = in_parts

    def floor(self, contraction: Contraction) -> Floor:
        return Floor(Multipliers.fastest(self.terms), waste=self.terms)

    def precompiled(self) -> tuple[KernelRef, ...]:
        return ()


@dataclass(frozen=True)
class _Problem:
    """The product as rows and columns of the output, whose columns are contiguous, and the operands that give them."""

    compute_type: DataType
    dag: PointwiseDag
    space: ProductSpace
    kind: WgmmaType
    rows: WgmmaOperand
    columns: WgmmaOperand
    reductions: EpilogueReductions
    in_parts: int | None

    @classmethod
    def of(
        cls, matched: AnchoredWithReductions[MatmulOperation], kind: WgmmaType, in_parts: int | None
    ) -> _Problem | str:
        """The problem, or why an operand can be neither read in place nor repacked, or a reduction not be computed."""
        anchor, dag = matched.anchor, matched.epilogue
        last = len(dag.dims) - 1
        a = WgmmaOperand.of(anchor.a, last - 1, last, kind)
        b = WgmmaOperand.of(anchor.b, last, last - 1, kind)
        if isinstance(a, str):
            return a
        if isinstance(b, str):
            return b
        is_swapped = is_contiguous_along_m(dag)
        rows, columns = (b, a) if is_swapped else (a, b)
        space = ProductSpace.of(dag, rows, columns, is_swapped=is_swapped)
        if space.batch_axes > _MAX_BATCH_AXES:
            got = list(space.batch_extents)
            return f"matmul.c.dims: expected at most {_MAX_BATCH_AXES} batch axes that do not merge, got {got}"
        reductions = EpilogueReductions.of(matched.reductions, dag, space.output)
        if isinstance(reductions, str):
            return reductions
        return cls(
            anchor.matmul.compute_type,
            dag,
            space,
            kind,
            rows.over(space.row_strides[: space.batch_axes] or (0,), space.row_stride, space.rows),
            columns.over(space.column_strides[: space.batch_axes] or (0,), columns.stride, space.columns),
            reductions,
            in_parts,
        )

    @property
    def batch_extents(self) -> tuple[int, ...]:
        """The batch extents, at least one: kernels have a batch axis."""
        return self.space.batch_extents or (1,)

    def operands(self, is_transposed: bool) -> tuple[WgmmaOperand, WgmmaOperand]:
        """The operands that make the tile's rows and its columns."""
        return (self.columns, self.rows) if is_transposed else (self.rows, self.columns)

    def instruction(self, is_transposed: bool) -> WgmmaType:
        p, q = self.operands(is_transposed)
        return self.kind if self.kind.is_split else WGMMA_TYPES[p.tensor.data_type, q.tensor.data_type]

    def product(self, is_transposed: bool, *, is_promoted: bool | None = None) -> WgmmaProduct:
        """The product as the tiles' model sees it; sums are promoted by the compute type, or by ``is_promoted`` if it
        is given.
        """
        found = self._transposed_product if is_transposed else self._plain_product
        return found if is_promoted in (None, found.is_promoted) else replace(found, is_promoted=bool(is_promoted))

    @cached_property
    def _plain_product(self) -> WgmmaProduct:
        return self._product(False)

    @cached_property
    def _transposed_product(self) -> WgmmaProduct:
        return self._product(True)

    def _product(self, is_transposed: bool) -> WgmmaProduct:
        p, q = self.operands(is_transposed)
        kind = self.instruction(is_transposed)
        has_operand = not is_transposed and mapped_operand(self.dag, self.space.output, self.space.rows) is not None
        return WgmmaProduct(
            kind,
            self.space.batches,
            p.extent,
            q.extent,
            ceil_div(p.depth, kind.stage_k),
            a_bytes=p.moved_bytes,
            b_bytes=q.in_parts(self.batch_extents)[0].size_bytes if kind.is_split else q.moved_bytes,
            output_bytes=moved_bytes(self.dag),
            is_a_mn_major=p.is_mn_major,
            is_b_mn_major=q.is_mn_major,
            allows_split=not self.reductions.exist and self.space.output.rows * self.space.columns <= MAX_TILED_EXTENT,
            column_unit=MAP_COLUMNS if self.reductions.exist else 8,
            is_promoted=wgmma_model.is_promoted(kind, self.compute_type),
            has_operand=has_operand,
            is_a_misaligned=p.is_misaligned,
            is_b_misaligned=q.is_misaligned and not kind.is_split,
            is_transposed=is_transposed,
            most_accumulators=most_accumulators(self.dag, self.space.output, self.reductions, has_operand=has_operand),
            sums_columns=self.reductions.column is not None,
            epilogue_functions=functions_of(self.dag),
        )

    @property
    def split_problem(self) -> str:
        """Why an operand cannot be split; empty if both can be, or neither is."""
        if not self.kind.is_split:
            return ""
        problems = (operand.in_parts(self.batch_extents)[0].problem for operand in (self.rows, self.columns))
        return next((f"matmul: expected {problem}" for problem in problems if problem), "")

    def _seconds(self, is_transposed: bool, arch: ArchSpec) -> float:
        """The modelled time of the product, with that of a launch that splits q."""
        seconds = wgmma_model.least_seconds(self.product(is_transposed), arch)
        if self.kind.is_split:
            seconds += moving_s(arch, self.operands(is_transposed)[1].in_parts(self.batch_extents)[0].moved_bytes)
        return seconds

    def prefers_transposed(self, arch: ArchSpec) -> bool:
        """Whether transposed tiles are faster. With few rows they may be, as tiles have at least 64 rows but may have 8
        columns; with many rows they are tried if ``may_transpose`` holds. An operand in parts gives the columns.
        """
        if self.in_parts is not None:
            return self.columns.tensor.uid != self.in_parts
        has_few_rows = self.space.rows <= min(self.space.columns, _MAX_TRANSPOSED_ROWS)
        if not has_few_rows and not wgmma_model.may_transpose(self.product(False)):
            return False
        if reductions_go_by_map(self.reductions, self.dag, self.space.output, self.space.rows):
            return False
        plain, transposed = (self._seconds(way, arch) for way in (False, True))
        if not has_few_rows:
            return transposed * wgmma_model.transpose_margin(self.product(False)) < plain
        fills_rows = self.space.rows >= WARPGROUP_ROWS
        return transposed < plain * (1 if fills_rows else wgmma_model.TIE_RATIO)


@dataclass(frozen=True)
class _Cut(WgmmaCut):
    """A problem and how it is cut: the plan's kernels and launches."""

    problem: _Problem
    is_transposed: bool

    @property
    def operands(self) -> tuple[WgmmaOperand, WgmmaOperand]:
        return self.problem.operands(self.is_transposed)

    @cached_property
    def schedule(self) -> Schedule:
        return self.tiling.schedule(self.problem.product(self.is_transposed))

    @property
    def is_split(self) -> bool:
        return self.schedule.splits > 1

    @cached_property
    def output(self) -> OutputStore:
        """The output of a product that is not split; for a split product, the store of the slice sum."""
        space = self.problem.space
        by_map = self.allows_map and not self.is_transposed and not self.is_split
        accumulator = self.problem.kind.accumulator
        return OutputStore.of(
            self.problem.dag,
            space.output,
            accumulator,
            space.rows,
            tile_columns=self.tile.stored_columns,
            by_map=by_map,
            reductions=self.problem.reductions,
            operand_buffers=self.tile.operand_buffers,
        )

    @property
    def store(self) -> TileStore:
        return TileStore.SLICE if self.is_split else self.output.store

    def parts(self, arch: ArchSpec) -> PlanParts:
        parts = PlanParts()
        space, stored_bytes = self.problem.space, moved_bytes(self.problem.dag)
        batches = self.problem.batch_extents
        is_split = self.problem.in_parts is not None
        maps = operand_maps(parts, self.tile, self.problem.kind, self.operands, (batches, batches), is_split=is_split)
        kernel = parts.kernel(self._kernel())
        if not self.is_split:
            reductions, grid = self.problem.reductions, self.schedule.grid(arch.sm_count)
            left = self.output.reduction_slices(self.tile, grid, is_transposed=self.is_transposed)
            totals = reductions.reserve(parts, left)
            output = self.output.argument(self.tile, totals)
            written_bytes = stored_bytes + reductions.totals_bytes(left)
            parts.launches.append(self._launch(kernel, maps, output, written_bytes, arch))
            reductions.combine(parts, left, totals, overlaps=True)
            return parts
        slices = Slices(self.schedule.splits, space.output.rows, space.columns)
        slices_at = parts.reserve(slices.size_bytes)
        output = slice_argument(space.rows, slices, slices_at)
        parts.launches.append(self._launch(kernel, maps, output, slices.size_bytes, arch))
        add_slice_sum(
            parts, space.output, self.output.functor, self.output.vector, slices, slices_at, stored_bytes, overlaps=True
        )
        return parts

    def _launch(
        self, kernel: int, maps: tuple[TensorMap, TensorMap], output: Struct, written_bytes: int, arch: ArchSpec
    ) -> Launch:
        batches = Struct(tuple(Struct(divider(extent)) for extent in self.problem.batch_extents))
        grid = self.schedule.grid(arch.sm_count)
        product = self.problem.product(self.is_transposed)
        moved = product.a_bytes + product.b_bytes + written_bytes
        busy_s = wgmma_model.busy_seconds(product, self.tiling, arch)
        arguments = Struct((*maps, output, self.schedule.argument, batches))
        flops = self.problem.kind.terms * self.schedule.occupied_flops(grid)
        work = Work(flops, moved, self.problem.kind.unit, busy_s)
        return self.tile_launch(kernel, grid, arguments, self.store, work)

    def _kernel(self) -> KernelRef:
        p, q = self.operands
        kind, output = self.problem.instruction(self.is_transposed), self.output
        params = Params(
            P_MN_MAJOR=int(p.is_mn_major),
            Q_MN_MAJOR=int(q.is_mn_major),
            BATCH_AXES=len(self.problem.batch_extents),
            TRANSPOSED=int(self.is_transposed),
            TF32X3=int(kind.is_split),
        )
        layout = f"{'km'[params.P_MN_MAJOR]}{'kn'[params.Q_MN_MAJOR]}{params.BATCH_AXES}{'t' * params.TRANSPOSED}"
        space = f"{output.output.row_axes}of{output.output.space.rank}_{'slice' if self.is_split else output.label}"
        ending = "sm90a" if self.is_split else f"v{output.vector}_sm90a_{output.functor.digest}"
        stores = slice_macros(output.output) if self.is_split else output.macros
        return KernelRef(
            name=f"matmul_wgmma_{kind.label}_{self.tile.label}_{layout}_{space}_{ending}",
            source="matmul/matmul_wgmma.cu",
            target=WGMMA_TARGET,
            parameters=(*kind.macros, *self.tile.macros, *macros(params), *stores),
            generated="" if self.is_split else output.functor.text,
        )


def _refuse_types(anchor: MatmulOperation, terms: int) -> str:
    known = ", ".join(f"{a.name} x {b.name}" for a, b in (WGMMA_TYPES if terms == 1 else TRUE_FP32_TYPES))
    got = f"{anchor.a.data_type.name} x {anchor.b.data_type.name}"
    return f"matmul.a.data_type, b.data_type: expected one of {known}, got {got}"


def _plain_kernel(data_type: DataType, transposes_b: bool) -> KernelRef:
    """The kernel of a packed 4096^3 product of ``data_type``; its extents are run-time values."""
    dims = (1, 4096, 4096)
    a, b, c = (Tensor(uid, data_type, dims, packed_strides(dims), alignment_bytes=16) for uid in (1, 2, 3))
    if transposes_b:
        b = Tensor(2, data_type, dims, packed_strides(dims, (0, 2, 1)), alignment_bytes=16)
    graph = OperationGraph([MatmulOperation(Matmul(DataType.FLOAT), a, b, c)])
    return MatmulWgmma().plan(graph, spec_named(WGMMA_TARGET), {}).kernels[0]
